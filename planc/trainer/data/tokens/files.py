"""Concatenate token files to one memory-mapped stream.

There are three formats, distinguished by name:

- `X.npy`: a one-dimensional numpy array of unsigned or signed integers;
- `X.bin` alone: contiguous little-endian tokens of the dtype in the preset;
- `X.bin` with `X.idx`: Megatron-LM's indexed dataset; its header has the dtype, its documents are contiguous.

A folder stands for all such files in it, in the order of their names.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planc.files import open_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Dtypes by header code, without floats (6 and 7). Source: Megatron-LM, `core/datasets/indexed_dataset.py`."""
BLOCK_BYTES = 1 << 22


class DataError(ValueError):
    """Raised if data cannot be used; the message tells the user why."""


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens: its path, the dtype of a token, the offset (bytes) of the first token, and the number of
    tokens."""

    path: Path
    dtype: str
    offset_bytes: int
    tokens: int

    @cached_property
    def values(self) -> NDArray[Any]:
        """The memory-mapped tokens."""
        if self.tokens == 0:
            return np.zeros(0, self.dtype)
        return np.memmap(self.path, np.dtype(self.dtype).newbyteorder("<"), "r", self.offset_bytes, (self.tokens,))

    def largest(self) -> int:
        """Return the largest token in the file; -1 if the file has none. Reads the whole file in blocks. Raises
        DataError for a negative token."""
        most, step = -1, BLOCK_BYTES // np.dtype(self.dtype).itemsize
        for start in range(0, self.tokens, step):
            block = self.values[start : start + step]
            if block.min() < 0:
                raise DataError(f"{self.path.name} holds a token below 0")
            most = max(most, int(block.max()))
        return most


@dataclass(frozen=True)
class Stream:
    """Token files, read as one concatenated stream."""

    files: tuple[TokenFile, ...]

    @cached_property
    def ends(self) -> list[int]:
        return list(accumulate(f.tokens for f in self.files))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def read(self, start: int, length: int) -> NDArray[np.int32]:
        """Return `length` tokens (int32) from position `start`. The stream must be long enough."""
        return np.concatenate(list(self._file_slices(start, length))).astype(np.int32)

    def _file_slices(self, start: int, length: int) -> Iterator[NDArray[Any]]:
        number = bisect_right(self.ends, start)
        while length > 0:
            file = self.files[number]
            inside = start - (self.ends[number] - file.tokens)
            part = file.values[inside : inside + length]
            yield part
            start, length, number = start + len(part), length - len(part), number + 1


def token_files(path: Path, dtype: str) -> tuple[TokenFile, ...]:
    """Return the token files at `path`, a file or a folder. `dtype` is the dtype of plain `.bin` files. Raises
    DataError if there are none, or one is damaged."""
    if path.is_dir():
        paths = sorted(p for p in path.iterdir() if p.suffix in (".npy", ".bin") and p.is_file())
        if not paths:
            raise DataError(f"{path} holds no .npy and no .bin file")
    elif path.is_file():
        paths = [path]
    else:
        raise DataError(f"{path} is not there")
    found = tuple(_token_file(p, dtype) for p in paths)
    if not any(f.tokens for f in found):
        raise DataError(f"{path} holds no tokens")
    return found


def _token_file(path: Path, dtype: str) -> TokenFile:
    if path.suffix == ".npy":
        return _numpy_file(path)
    if path.suffix != ".bin":
        raise DataError(f"{path.name} is neither .npy nor .bin")
    index = path.with_suffix(".idx")
    return _megatron_file(path, index) if index.exists() else _raw_token_file(path, dtype)


def _raw_token_file(path: Path, dtype: str) -> TokenFile:
    size, width = path.stat().st_size, np.dtype(dtype).itemsize
    if size % width:
        raise DataError(f"{path.name} has {size:,} bytes, which is no whole number of {dtype} tokens")
    return TokenFile(path, dtype, 0, size // width)


def _numpy_file(path: Path) -> TokenFile:
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy reads the header as Python, and says nothing about what that may raise
        raise DataError(f"{path.name} is no numpy array that can be mapped: {error}") from None
    if mapped.ndim != 1 or mapped.dtype.kind not in "ui" or not mapped.dtype.newbyteorder("<").isnative:
        raise DataError(f"{path.name} is {mapped.dtype} of {mapped.ndim} dimensions; one of integers is needed")
    return TokenFile(path, mapped.dtype.name, mapped.offset, len(mapped))


def _megatron_file(path: Path, index: Path) -> TokenFile:
    """Return the token file of an index of Megatron-LM. The index has magic, version, dtype, numbers of sequences and
    documents, and then the sizes of sequences (int32)."""
    with open_regular(index) as file:
        size_bytes = file.seek(0, 2)
        file.seek(0)
        head = file.read(len(MEGATRON_MAGIC) + 25)
        if len(head) < len(MEGATRON_MAGIC) + 25 or not head.startswith(MEGATRON_MAGIC):
            raise DataError(f"{index.name} is no index of Megatron-LM")
        version, code, sequences, _documents = struct.unpack("<QBQQ", head[len(MEGATRON_MAGIC) :])
        if version != 1 or code not in MEGATRON_DTYPES:
            raise DataError(f"{index.name} is of version {version} and dtype {code}, which planc does not read")
        if 4 * sequences > size_bytes - len(head):
            raise DataError(f"{index.name} is cut short: it speaks of {sequences:,} sequences")
        sizes = np.frombuffer(file.read(4 * sequences), "<i4")
    if sizes.size and sizes.min() < 0:
        raise DataError(f"{index.name} speaks of a sequence of {sizes.min()} tokens")
    said, there = int(sizes.sum(dtype=np.int64)), _raw_token_file(path, MEGATRON_DTYPES[code])
    if said != there.tokens:
        raise DataError(f"{path.name} holds {there.tokens:,} tokens, and its index speaks of {said:,}")
    return there
