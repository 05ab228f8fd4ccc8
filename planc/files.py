"""Writing files so that a reader sees the old content or the new one, never half of it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content; text is written as UTF-8, with its line ends as they are.

    The folder is made when it is absent. The old file's permissions stay, and a link goes on leading to its file,
    whose content is replaced. Raises OSError, and then nothing is changed and no other file is left behind.
    """
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:80]}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, place)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    """Reading the mask means setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
