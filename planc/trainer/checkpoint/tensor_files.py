"""Writes this rank's boxes (rectangular parts) of a checkpoint's tensors as safetensors files, and reads any box."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.numpy import save

from planc.backends.common.box_reader import BoxReader
from planc.trainer.checkpoint.manifest import File, Stored, StoredBox

if TYPE_CHECKING:
    from planc.ir.session import Piece, Weights

MOST_BYTES = 256 * 2**20
"""Maximum bytes per file, unless a single tensor is larger: a rank holds two copies of a file while writing."""
OFFSETS = "DCP_SHARDING_INFO"
"""The metadata key under which torch.distributed.checkpoint looks for offsets (torch 2.13, `_hf_utils`)."""


def write(
    folder: Path, rank: int, pieces: Sequence[Piece], arrays: Sequence[Weights]
) -> tuple[dict[str, File], dict[str, Stored]]:
    """Write the values of `pieces` as safetensors files. Each file is synced to disk before the next is written. Raises
    OSError.

    Args:
        folder: folder of the checkpoint.
        rank: this process; its number is in the file names.
        pieces: the boxes of tensors that this process holds.
        arrays: the values of each piece, in the piece's size.

    Returns the size and checksum of each file by its name, and the shape and boxes of each tensor by its name.
    """
    files: dict[str, File] = {}
    tensors: dict[str, Stored] = {}
    for number, group in enumerate(_grouped(pieces)):
        name = f"part-{rank:05}-{number:05}.safetensors"
        data = _encoded([pieces[i] for i in group], [arrays[i] for i in group])
        write_through(folder / name, data)
        files[name] = File(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for i in group:
            piece = pieces[i]
            box = StoredBox(file=name, offset=tuple(map(int, piece.offset)), size=tuple(map(int, piece.size)))
            before = tensors[piece.name].boxes if piece.name in tensors else ()
            tensors[piece.name] = Stored(shape=tuple(map(int, piece.shape)), boxes=(*before, box))
    return files, tensors


def write_through(path: Path, data: bytes) -> None:
    """Write `data` to a file at `path` and sync it to disk. Raises OSError."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _encoded(pieces: Sequence[Piece], arrays: Sequence[Weights]) -> bytes:
    offsets = {p.name: {"saved_offsets": list(p.offset)} for p in pieces}
    values = {p.name: array for p, array in zip(pieces, arrays, strict=True)}
    data: bytes = save(values, metadata={"format": "pt", OFFSETS: json.dumps(offsets)})
    return data


def _grouped(pieces: Sequence[Piece]) -> Iterator[list[int]]:
    """Yield the pieces of each file, as indices. A file has each tensor name at most once, and at most MOST_BYTES
    unless one piece is larger."""
    left = list(range(len(pieces)))
    while left:
        taken: list[int] = []
        names, size = set[str](), 0
        for i in left:
            nbytes = 4 * prod(pieces[i].size)
            if pieces[i].name not in names and (not taken or size + nbytes <= MOST_BYTES):
                taken.append(i)
                names.add(pieces[i].name)
                size += nbytes
        yield taken
        chosen = set(taken)
        left = [i for i in left if i not in chosen]


class Reader:
    """Reads boxes of the tensors of a verified checkpoint."""

    def __init__(self, folder: Path, tensors: dict[str, Stored]) -> None:
        self._shapes = {name: stored.shape for name, stored in tensors.items()}
        boxes = {name: [(b.file, b.offset, b.size) for b in stored.boxes] for name, stored in tensors.items()}
        self._reader = BoxReader(folder, boxes)

    def __call__(self, name: str, index: tuple[slice, ...]) -> Weights:
        """Return the values of the box `index` of the tensor `name`. Only stored boxes that overlap it are read."""
        box = tuple(s.indices(n)[:2] for s, n in zip(index, self._shapes[name], strict=True))
        values: Weights = self._reader.box(name, box)
        return values
