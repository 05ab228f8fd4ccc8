"""Read the header of a safetensors file, with a size limit, and check it against the file's length."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from planc.files import open_regular, parse_json

MAX_BYTES = 100_000_000
"""Maximum size of a header, as in the safetensors package."""
MAX_DIM = 10**15
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes per element of the dtypes that planc reads."""


class Entry(NamedTuple):
    """One tensor of a file. `start` is the byte offset of its first value in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


def read_header(file: Path) -> dict[str, Entry]:
    """Read the tensors of `file` by name. Raises OSError, and ValueError if the file does not match its header."""
    with open_regular(file) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        length = int.from_bytes(stream.read(8), "little")
        if length > min(size - 8, MAX_BYTES):
            raise ValueError(f"{file.name} is cut short, or its header is larger than {MAX_BYTES:,} bytes")
        entries = parse_json(stream.read(length))
    if not isinstance(entries, dict):
        raise ValueError(f"the header of {file.name} is no JSON object")
    values = size - 8 - length
    return {
        name: Entry(dtype, shape, 8 + length + start)
        for name, entry in entries.items()
        if name != "__metadata__"
        for dtype, shape, start in [_entry(file.name, name, entry, values)]
    }


def _entry(file: str, name: str, entry: Any, values_bytes: int) -> tuple[str, tuple[int, ...], int]:
    """Return a tensor's dtype, shape and byte offset in the values of its file. Raises ValueError if `entry` is
    invalid."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise ValueError(f"the header of {file} does not describe {name}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise ValueError(f"{name} is of type {dtype}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"the header of {file} gives {name} an impossible shape or place")
    start, end = offsets
    if end - start != prod(shape) * BYTES[dtype] or end > values_bytes:
        raise ValueError(f"{file} is cut short at {name}")
    return dtype, tuple(shape), start


def _are_counts(values: Any) -> bool:
    """True if `values` is a list of at most eight non-negative integers."""
    if not isinstance(values, list) or len(values) > 8:
        return False
    return all(type(n) is int and 0 <= n <= MAX_DIM for n in values)
