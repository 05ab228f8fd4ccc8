"""Reading files that others wrote, bounded; writing files so that a reader sees the old content or the new one."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path


class TooLargeError(OSError):
    """The file holds more than the reader accepts."""


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file of at most `most_bytes`.

    Raises OSError for anything else, at once: a device, a pipe or a folder is never read, and opening a pipe
    without a writer does not wait. A larger file raises TooLargeError.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # a null byte in the name
        raise OSError(errno.EINVAL, str(error)) from None
    with os.fdopen(handle, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise TooLargeError(errno.EFBIG, f"it is larger than {most_bytes // 1000:,} kB")
    return data


def leads_out(path: Path) -> bool:
    """True when `path` is a link to something outside the folder in which the link stands."""
    return path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the content of the file at `path`; text is written as UTF-8, with its line ends as they are.

    The folder is made when it is absent. The old file's permissions stay, and a link goes on leading to its file, whose
    content is replaced. Raises OSError, and then nothing is changed and no other file is left behind.
    """
    import tempfile

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
