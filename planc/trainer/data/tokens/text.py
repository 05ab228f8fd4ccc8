"""Tokenizes a folder of text once into a cached token file, which is then memory-mapped.

Each file is a document; in a `.jsonl` file each line is a document, under its key `text`. Files are ordered by the hash
of their names, so that the end of the stream, which is held out, has the same distribution as the rest. The
end-of-document token follows each document. Only one document and one block of tokens are in memory at a time; a long
file is read in chunks of whole lines.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planc.files import open_regular, parse_json
from planc.trainer.data.tokens.files import DataError, TokenFile
from planc.trainer.data.tokens.sums import sha256_of
from planc.trainer.data.tokens.tokenizer import Tokenizer

PART_CHARACTERS = 1 << 20
"""Maximum number of characters that are tokenized at once."""
BLOCK_TOKENS = 1 << 20
NARROW = 1 << 16
"""Largest vocabulary for which token ids fit uint16."""


@dataclass(frozen=True)
class TextTokens:
    """Text files, and the tokenizer for them."""

    root: Path
    files: tuple[Path, ...]
    tokenizer: Tokenizer

    @property
    def sha256(self) -> str:
        """SHA-256 of the files' names and contents, the tokenizer, and the end-of-document token."""
        digest = hashlib.sha256(f"{self.tokenizer.sha256} {self.tokenizer.end}\n".encode())
        for path in self.files:
            digest.update(f"{_name(self.root, path)} {sha256_of(path)}\n".encode())
        return digest.hexdigest()

    def tokens(self, cache: Path) -> TokenFile:
        """Return the token file of all documents, which is in the folder `cache`; it is written first if missing.
        Raises DataError."""
        dtype = "uint16" if max(self.tokenizer.vocab, self.tokenizer.end + 1) <= NARROW else "uint32"
        path = cache / f"{self.sha256[:32]}.{dtype}"
        if not path.exists():
            self._write(path, dtype)
        return TokenFile(path, dtype, 0, path.stat().st_size // np.dtype(dtype).itemsize)

    def _write(self, path: Path, dtype: str) -> None:
        """Write the token file atomically, because several ranks may write it at once."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        try:
            with os.fdopen(handle, "wb") as file:
                for block in self._blocks():
                    file.write(np.asarray(block, np.dtype(dtype).newbyteorder("<")).tobytes())
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def _blocks(self) -> Iterator[list[int]]:
        held: list[int] = []
        for path in self.files:
            for document in documents(path):
                for part in document:
                    held += self.tokenizer.encode(part)
                    if len(held) >= BLOCK_TOKENS:
                        yield held
                        held = []
                held.append(self.tokenizer.end)
        yield held


def text_of(path: Path, tokenizer: Tokenizer) -> TextTokens:
    """Return the text files at `path` (a file, or a folder with its subfolders) for `tokenizer`. Raises DataError if
    there are none."""
    if path.is_file():
        return TextTokens(path.parent, (path,), tokenizer)
    if not path.is_dir():
        raise DataError(f"{path} is not there")
    below = (p for p in path.rglob("*") if p.is_file() and not _is_hidden(path, p) and p.stat().st_size)
    files = sorted(below, key=lambda p: hashlib.sha256(_name(path, p).encode()).digest())
    if not files:
        raise DataError(f"{path} holds no text")
    return TextTokens(path, tuple(files), tokenizer)


def documents(path: Path) -> Iterator[Iterator[str]]:
    """Yield the documents of the file at `path`: one per line of a `.jsonl` file, else the whole file. Each document is
    an iterator over chunks of its text. Raises DataError for text that is not valid."""
    if path.suffix != ".jsonl":
        yield _text_chunks(path)
        return
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield iter([_text(path, number, line)])


def _text_chunks(path: Path) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for line in _lines(path):
        held.append(line)
        size += len(line)
        if size >= PART_CHARACTERS:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file with their original line endings."""
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _text(path: Path, number: int, line: str) -> str:
    try:
        text = parse_json(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise DataError(f"line {number} of {path.name} is no JSON object with a text under `text`")
    return text


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _is_hidden(root: Path, path: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)
