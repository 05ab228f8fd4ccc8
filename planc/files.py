"""Reading of untrusted files up to a size limit, and atomic writing: a reader sees the old content or the new one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from json import JSONDecoder

MAX_TEXT_BYTES = 16_000_000
"""Largest text that people write: plans, presets, configs."""


class TooLargeError(OSError):
    """Raised if a file is larger than its reader accepts."""


def package_table(package: str, name: str) -> dict[str, Any]:
    """Return the content of the TOML file `name` in the folder of `package`, one of planc's own packages."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8"))


def open_regular(path: Path) -> BinaryIO:
    """Open the regular file at `path`. Raises OSError immediately if it is something else.

    A device, a pipe or a folder is never read. Opening a pipe without a writer does not block.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # a null byte in the name
        raise OSError(errno.EINVAL, str(error)) from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is not a regular file")


def read_bounded(path: Path, most_bytes: int, *, follows_links: bool = False) -> bytes:
    """Return the bytes of the regular file at `path`, at most `most_bytes`.

    Raises OSError for anything but a regular file, and TooLargeError for a larger file. A repository may contain links
    to files outside its folders; unless `follows_links` is set, such a link raises OSError too.
    """
    if not follows_links and leads_out(path):
        raise OSError(errno.EXDEV, "it is a link out of its folder")
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise TooLargeError(errno.EFBIG, f"it is larger than {most_bytes // 1000:,} kB")
    return data


def read_text(path: Path, most_bytes: int, *, follows_links: bool = False) -> str:
    """Return the text of the regular file at `path`, at most `most_bytes` long. The file is UTF-8; a byte-order mark is
    removed, and all line ends become newlines. `follows_links` is as in `read_bounded`.

    Raises OSError as `read_bounded` does, and ValueError if the bytes are not UTF-8.
    """
    try:
        text = read_bounded(path, most_bytes, follows_links=follows_links).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: {error.reason} at byte {error.start}") from None


def first_word(path: Path) -> str:
    """Return the first word of the text file at `path` that is in no comment; "" if there is none, or the file cannot
    be read."""
    try:
        words = (line.split() for line in read_text(path, MAX_TEXT_BYTES).splitlines())
        return next((w[0] for w in words if w and not w[0].startswith("#")), "")
    except (OSError, ValueError):
        return ""


def read_json(path: Path, most_bytes: int, *, follows_links: bool = False) -> Any:
    """Return the JSON value in the file at `path`, of at most `most_bytes`. `follows_links` is that of `read_text`."""
    return parse_json(read_text(path, most_bytes, follows_links=follows_links))


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Return the value of the JSON `text`. Raises ValueError if `text` is not JSON, is nested too deeply, or has a key
    twice, an integer beyond 64 bits or, unless `finite` is False, a number that is NaN, infinite or beyond fp64."""
    import json
    import re

    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return _json_decoder(finite, re.search(LONG_NUMBER, text) is not None).decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


LONG_NUMBER = r"[0-9]{19}|[0-9][eE][+-]?[0-9]{3}"
"""Matches each number beyond 64 bits or fp64, and others."""


@cache
def _json_decoder(finite: bool, long_numbers: bool) -> JSONDecoder:
    from json import JSONDecoder

    hooks: dict[str, Any] = {"parse_constant": _finite} if finite else {}
    if long_numbers:  # a call for each number, which takes longer than all else
        hooks |= {"parse_int": _whole} | ({"parse_float": _finite} if finite else {})
    return JSONDecoder(object_pairs_hook=_unique, **hooks)


def parse_toml(text: str, *, finite: bool = True) -> dict[str, Any]:
    """Return the tables of the TOML `text`. Raises ValueError if `text` is not TOML, or has what `parse_json` refuses.

    The standard library's parser takes the square of a key's parts, so that a key of too many is refused before.
    """
    import re
    import tomllib

    if re.search(MANY_PARTS, text):
        raise ValueError(f"a key has more than {MOST_PARTS} parts")
    try:
        values = tomllib.loads(text, parse_float=_finite if finite else float)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    pending: list[Any] = [values]
    while pending:
        value = pending.pop()
        if type(value) is int and value.bit_length() > MOST_BITS:
            raise ValueError("an integer is beyond 64 bits")
        pending += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return values


MOST_BITS = 64
MOST_PARTS = 50
MANY_PARTS = rf"""(?<![\w\-"'. \t])(?:[ \t]*+(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.){{{MOST_PARTS}}}"""


def _finite(text: str) -> float:
    if isfinite(value := float(text)):
        return value
    raise ValueError(f"{text[:20]} is no finite number")


def _whole(text: str) -> int:
    if len(text) <= 20 and (value := int(text)).bit_length() <= MOST_BITS:  # of 20 digits or a sign
        return value
    raise ValueError(f"{text[:20]}... is beyond 64 bits")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    raise ValueError(f"{twice[:60]!a} stands twice")


def leads_out(path: Path) -> bool:
    """True if `path` is a link to something outside the folder that contains the link."""
    return path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the content of the file at `path`. Text is written as UTF-8, with its line ends unchanged.

    The folder is created if it does not exist. The file's permissions stay. If `path` is a link, the content of its
    target is replaced. A device or a pipe, such as /dev/stdout, is written to. If OSError is raised, nothing has
    changed and no temporary file is left.
    """
    import tempfile

    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file() and not path.is_dir():
        with open(path, "wb") as device:
            device.write(data)
        return
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:80]}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, place)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a hidden folder to fill, which is renamed to `path` after the `with` block, or deleted if the block raises.

    `path` must not exist, or be an empty folder. Raises OSError if the folder cannot be created or renamed.
    """
    import shutil
    import tempfile

    place = path.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    filling = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name[:80]}-"))
    try:
        yield filling
        filling.chmod(0o777 & ~_umask())
        os.rename(filling, place)
    except BaseException:
        shutil.rmtree(filling, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0)  # no call reads the mask without setting it
    os.umask(mask)
    return mask
