"""Boxes of the tensors of a checkpoint, read from its files. The programs that planc emits carry this module as it
stands, so a generator reads a checkpoint as the trainer does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from planc.sharding.transfer_core import Box, crossings


class BoxReader:
    """Reads boxes of the tensors of the checkpoint in `folder`, and of its files only what lies in them.

    `tensors` are the boxes that make up each tensor, by its name: file, offset, and size in elements.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, Iterable[tuple[str, Iterable[int], Iterable[int]]]]) -> None:
        self.folder, self.read_bytes = folder, 0
        self.parts = {name: [self.part(*box) for box in boxes] for name, boxes in tensors.items()}
        self.open: dict[str, Any] = {}

    def part(self, file: str, offset: Iterable[int], size: Iterable[int]) -> tuple[Box, tuple[str, Box]]:
        """Return the box of a tensor at `offset` of this `size`, and beside it its `file` and, again, the box."""
        box = tuple((start, start + length) for start, length in zip(offset, size, strict=True))
        return box or ((0, 1),), (file, box)

    def box(self, name: str, wanted: Box) -> Any:
        """Return the values of the box `wanted` of the tensor `name`, as a float32 array.

        Raises ValueError if the checkpoint does not have all of them.
        """
        import numpy as np

        found = np.empty([last - first for first, last in wanted], np.float32)
        filled = 0
        for both, (file, part), _ in crossings(self.parts[name], [(wanted or ((0, 1),), None)]):
            there = tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(both, part, strict=False))
            here = tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(both, wanted, strict=False))
            values = self.file(file).get_slice(name)[there]
            found[here] = values
            filled += values.size
        if filled != found.size:
            raise ValueError(f"{name}: the checkpoint has {filled} of {found.size} elements of the box {wanted}")
        self.read_bytes += found.nbytes
        return found

    def file(self, name: str) -> Any:
        """Return the safetensors file `name`, opened."""
        from safetensors import safe_open

        if name not in self.open:
            self.open[name] = safe_open(self.folder / Path(name).name, framework="np")
        return self.open[name]


def open_checkpoint(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> BoxReader:
    """Return the reader of the checkpoint in `folder`, a `step-...` of planc's trainer.

    `shapes` are those of all parameters, by name. Raises ValueError if the checkpoint has others.
    """
    manifest = json.loads((folder / "checkpoint.json").read_text())
    if manifest["format"] != "planc.checkpoint/1":
        raise ValueError(f"{folder} has the format {manifest['format']}, not planc.checkpoint/1")
    tensors = manifest["tensors"]
    for name, shape in shapes.items():
        there = tensors.get(f"params.{name}", {}).get("shape")
        if there is None or tuple(there) != shape:
            raise ValueError(f"{folder}: {name} is {there} there and {list(shape)} here")
    boxes = {name: [(b["file"], b["offset"], b["size"]) for b in t["boxes"]] for name, t in tensors.items()}
    return BoxReader(folder, boxes)
