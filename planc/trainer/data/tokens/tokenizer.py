"""Converts text to tokens: the bytes, or by a `tokenizer.json`, the format of Hugging Face's package tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Protocol

from planc.files import parse_json, read_text
from planc.trainer.data.tokens.files import DataError
from planc.trainer.data.tokens.sums import sha256_of

BYTES = "bytes"
MAX_BYTES = 200_000_000
"""Maximum size of a tokenizer file; those of large vocabularies have 30 MB."""
MOST_GROWTH = 1000
NUL = 0
"""The end-of-document token of byte-level data: a byte that does not occur in text."""
ENDS = ("<|end_of_text|>", "<|endoftext|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>")
"""End-of-document tokens of common model families, Llama 3's first."""


class Tokenizer(Protocol):
    """A tokenizer with a vocabulary of `vocab` tokens. `end` is the end-of-document token. `sha256` identifies the
    tokenizer."""

    vocab: int
    end: int
    sha256: str

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, without special tokens."""
        ...


class ByteTokenizer:
    """Byte-level tokenizer: each token is a byte of UTF-8."""

    vocab = 256
    sha256 = BYTES

    def __init__(self, end: int = NUL) -> None:
        self.end = end

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class FileTokenizer:
    """A tokenizer from `tokenizer.json`, which contains no executable code."""

    def __init__(self, path: Path, end: int | str | None) -> None:
        from tokenizers import Tokenizer as Fast

        with _refusing(f"{path.name} is no tokenizer"):
            text = read_text(path, MAX_BYTES, follows_links=True)  # a cache of models is made of links
            if _growth(parse_json(text)) > MOST_GROWTH:
                raise ValueError(f"its normalizer makes texts more than {MOST_GROWTH} times as long")
            self._fast = Fast.from_str(text)
        self._name = path.name
        self.vocab = int(self._fast.get_vocab_size(with_added_tokens=True))
        self.end = self._end_token(path, end)
        self.sha256 = sha256_of(path)

    def encode(self, text: str) -> list[int]:
        with _refusing(f"{self._name} does not take the text apart"):
            return list(self._fast.encode(text, add_special_tokens=False).ids)

    def _end_token(self, path: Path, end: int | str | None) -> int:
        if isinstance(end, int):
            return end
        known = {name: self._fast.token_to_id(name) for name in ([end] if end else ENDS)}
        found = [token for token in known.values() if token is not None]
        if not found:
            raise DataError(f"{path.name} has no token {' or '.join(known)}: say `end_of_document`")
        return int(found[0])


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """A context manager that converts errors of the tokenizers package, and panics of its Rust code, to DataError."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise DataError(f"{what}: {error}") from None
        raise


def _growth(fields: object) -> float:
    """Return a bound on the factor by which `Replace` normalizers in a tokenizer's JSON (`fields`) lengthen a text.
    Without a limit, a small file could expand texts to gigabytes."""
    if not isinstance(fields, dict):
        return 1.0
    listed = fields.get("normalizers")
    parts = [fields.get("normalizer"), *(listed if isinstance(listed, list) else ())]
    content, pattern = fields.get("content"), fields.get("pattern")
    found = pattern.get("String") if isinstance(pattern, dict) else ""
    own = len(content) / max(1, len(found) if isinstance(found, str) else 1) if isinstance(content, str) else 1.0
    return prod((max(1.0, own), *map(_growth, parts)))


def tokenizer_of(name: str, folder: Path, end: int | str | None) -> Tokenizer:
    """Return the byte tokenizer if `name` is "bytes", else the tokenizer in the file `name` of the preset's `folder`.

    `end` is the end-of-document token, by id or text; None: the tokenizer's default. Raises DataError if the file is
    missing or is no tokenizer, and ModuleNotFoundError if the package tokenizers is not installed.
    """
    if name == BYTES:
        if isinstance(end, str):
            raise DataError("`end_of_document` of bytes is a number")
        return ByteTokenizer(NUL if end is None else end)
    path = folder / name
    if not path.is_file():
        raise DataError(f"the tokenizer {path} is not there")
    return FileTokenizer(path, end)
