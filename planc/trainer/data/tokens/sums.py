"""Caches the SHA-256 of files, keyed by size, modification time and inode.

Therefore a corpus is read once and not at every start, and it is never held in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from planc.cache import cache_folder
from planc.files import open_regular, read_json, write_atomically

BLOCK_BYTES = 1 << 20
MAX_NOTE_BYTES = 1_000_000


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of the file at `path`."""
    found: str = remembered(path, "sha256", lambda: _sha256(path))
    return found


def remembered(path: Path, what: str, find: Callable[[], Any]) -> Any:
    """Return the value called `what` of the file at `path` from the cache. If it is not cached, or the file has changed
    (size, modification time or inode), call `find` and cache its result.

    The value is JSON and depends only on the content of the file.
    """
    stat = path.stat()
    state = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    note = cache_folder() / "sums" / f"{hashlib.sha256(f'{path.absolute()} {what}'.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = read_json(note, MAX_NOTE_BYTES)
        if said["state"] == state:
            return said["value"]
    value = find()
    with suppress(OSError):  # without a cache it is found again
        write_atomically(note, json.dumps({"state": state, "value": value}))
    return value


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
