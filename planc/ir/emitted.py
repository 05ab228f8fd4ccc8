"""Importing an emitted file: written once per content, so that tracebacks show its lines."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from planc.syntax.cache import cache_folder


def import_text(text: str, name: str) -> ModuleType:
    """The module that `text` is. The same text gives the same module."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    module_name = f"{name}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    path = _written(text, f"{module_name}.py")
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _written(text: str, name: str) -> Path:
    """Write atomically: several ranks may do this at once."""
    folder = cache_folder() / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="planc-"))
    path = folder / name
    if not path.exists() or path.read_text() != text:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".writing-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    return path
