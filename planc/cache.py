"""The folder in which planc caches files. Cached files are trusted only if nobody else can write to the folder."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

PRIVATE = 0o700
OTHERS_MAY_WRITE = 0o022


def cache_folder() -> Path:
    """Return the absolute path of planc's cache folder, which is created if missing: $PLANC_CACHE, or `planc` in the
    user's cache folder. An empty or relative variable counts as unset.

    A temporary folder of this process is returned if that folder cannot be created, belongs to somebody else, is a
    link, or is writable by others.
    """
    folder = _configured()
    return folder if folder is not None and _made_private(folder) else _temporary()


def _configured() -> Path | None:
    if (own := _absolute("PLANC_CACHE")) is not None:
        return own
    if (base := _absolute("XDG_CACHE_HOME")) is not None:
        return base / "planc"
    home = Path(os.path.expanduser("~"))
    return home / ".cache" / "planc" if home.is_absolute() else None


def _absolute(variable: str) -> Path | None:
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else None


def _made_private(folder: Path) -> bool:
    """Create `folder` if it is missing. True if only the user can write to it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid() or found.st_mode & OTHERS_MAY_WRITE or not _reached_safely(folder.parent):
            return False
        if stat.S_IMODE(found.st_mode) != PRIVATE:
            os.fchmod(handle, PRIVATE)
        return os.access(folder, os.W_OK)
    except OSError:
        return False
    finally:
        os.close(handle)


def _reached_safely(folder: Path) -> bool:
    """True if every folder on the path belongs to the user or root, and is sticky or not writable by all."""
    real = folder.resolve()
    for step in (real, *real.parents):
        found = step.stat()
        open_to_all = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or open_to_all:
            return False
    return True


@cache
def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="planc-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
