"""Reading files that others wrote: regular files only, and never more bytes than asked for."""

from __future__ import annotations

import errno
import os
import stat
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
