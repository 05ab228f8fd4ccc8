"""Imports an emitted program from its text. A copy on disk serves only tracebacks and debuggers."""

from __future__ import annotations

import hashlib
import linecache
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from planc.cache import cache_folder
from planc.files import read_bounded, write_atomically


def import_text(text: str, name: str) -> ModuleType:
    """Return a module with source `text`, executed once: the same text returns the same module."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    module_name = f"{name}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    path = _write_copy(text, f"{module_name}.py")
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module = ModuleType(module_name)
    module.__file__ = path
    sys.modules[module_name] = module
    try:
        exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _write_copy(text: str, name: str) -> str:
    """Write the text to a file in the cache, if possible; return its path. Several ranks may write it at once."""
    path = cache_folder() / "programs" / name
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
        if _content(path) != text.encode():
            write_atomically(path, text)
    return str(path)


def _content(path: Path) -> bytes:
    try:
        return read_bounded(path, 16_000_000)
    except OSError:
        return b""
