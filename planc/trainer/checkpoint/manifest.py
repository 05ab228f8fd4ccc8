"""The manifest `checkpoint.json` (`planc.checkpoint/1`): a checkpoint's contents, and its files with checksums."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from planc.files import parse_json
from planc.ir.field_types import shortened
from planc.ir.frozen import Frozen, first_mistake

NAME = "checkpoint.json"
HISTORY = "history.json"
FORMAT = "planc.checkpoint/1"


MAX_BYTES = 1 << 30
"""Limit on the size in bytes of a manifest or a history."""
MAX_DIMS = 5
"""Largest number of dims of a tensor."""
MAX_COUNT = 10**15
"""Largest step, position, dim or number of bytes."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
Dims = Annotated[tuple[Count, ...], Field(max_length=MAX_DIMS)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}$")]
"""A plain name: a checkpoint's files are in its own folder."""
Line = Annotated[str, Field(max_length=1000)]
Sizes = dict[str, tuple[int, ...]]
"""Sizes of boxes in elements, by the names of their tensors."""


class File(Frozen):
    """A file of the checkpoint."""

    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class StoredBox(Frozen):
    """One box of a tensor: its file, and the part of the tensor that the file holds."""

    file: FileName
    offset: Dims
    size: Dims


class Stored(Frozen):
    """A whole tensor and the boxes that make it up. Values are little-endian float32."""

    shape: Dims
    boxes: tuple[StoredBox, ...]

    @model_validator(mode="after")
    def _boxes_inside(self) -> Stored:
        for box in self.boxes:
            if not len(box.offset) == len(box.size) == len(self.shape):
                raise ValueError(f"a box of {len(box.size)} dims in a tensor of {len(self.shape)}")
            if any(start + size > n for start, size, n in zip(box.offset, box.size, self.shape, strict=True)):
                raise ValueError(f"a box of {list(box.size)} at {list(box.offset)} is not inside {list(self.shape)}")
        return self

    def is_whole(self) -> bool:
        """Return True if every element of the tensor is in exactly one box.

        Each corner of a box counts as +1 or -1, by its parity. Inner corners cancel, so the sum over all boxes equals
        that of the whole tensor only if the boxes cover every element once.
        """
        corners: Counter[tuple[int, ...]] = Counter()
        for box in self.boxes:
            _add_corners(corners, box.offset, box.size, 1)
        _add_corners(corners, (0,) * len(self.shape), self.shape, -1)
        return not any(corners.values())


def _add_corners(corners: Counter[tuple[int, ...]], offset: tuple[int, ...], size: tuple[int, ...], count: int) -> None:
    """Add to `corners` the corners of a box: `count` each, negated if the corner is an odd number of sides away from
    `offset`. A box without elements has no corners."""
    if 0 in size:
        return
    for ends in product((0, 1), repeat=len(size)):
        corner = tuple(start + n * end for start, n, end in zip(offset, size, ends, strict=True))
        corners[corner] += -count if sum(ends) % 2 else count


class Position(Frozen):
    """Position in the data. The next batch is a function of `step` and the seed."""

    step: Count
    sequences: Count
    tokens: Annotated[int, Field(ge=0, le=10**20)]


class Manifest(Frozen):
    """The fields of `checkpoint.json`: all of a checkpoint but the values of its tensors."""

    format: Literal["planc.checkpoint/1"] = "planc.checkpoint/1"
    step: Count
    optimizer_steps: Count
    """Number of updates: fewer than `step` if steps were skipped."""
    plan: Line
    plan_sha256: Line
    mesh: dict[Line, Annotated[Count, Field(ge=1)]]
    target: Line
    runtime: Line
    versions: dict[Line, Line]
    model: Line
    course: dict[str, Any]
    """Settings other than model and data that affect the losses: batch, seed, learning rate, optimizer."""
    data_sha256: Line
    position: Position
    saved_at: Line
    """UTC, ISO 8601."""
    files: dict[FileName, File] = Field(default_factory=dict)
    tensors: dict[Line, Stored] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Manifest:
        if self.optimizer_steps > self.step or self.position.step != self.step:
            raise ValueError(f"{self.optimizer_steps} updates and position {self.position.step} at step {self.step}")
        sequences, tokens = self.position.sequences, self.position.tokens
        if tokens % sequences if sequences else tokens:
            raise ValueError(f"{tokens} tokens in {sequences} sequences of the same length")
        self.boxes_by_file()
        return self

    def boxes_by_file(self) -> dict[str, Sizes]:
        """Return the tensors in each file, with the sizes of their boxes. Raises ValueError for an unlisted file or a
        tensor with two boxes in a file."""
        found: dict[str, Sizes] = {}
        for name, stored in self.tensors.items():
            for box in stored.boxes:
                inside = found.setdefault(box.file, {})
                if box.file not in self.files or name in inside:
                    what = "holds it twice" if name in inside else "is none of its files"
                    raise ValueError(f"a box of {name} is in {box.file}, which {what}")
                inside[name] = box.size
        return found

    def text(self) -> str:
        """Return the content of `checkpoint.json`: the fields, and their checksum under `sha256`."""
        fields = self.model_dump(mode="json")
        return json.dumps({**fields, "sha256": _sha256(fields)}, indent=1, allow_nan=False) + "\n"


class DamagedManifestError(ValueError):
    """Raised if the text of a manifest is damaged."""


class LaterError(ValueError):
    """Raised if a manifest has a format that this version of planc does not support."""


def read(text: str) -> Manifest:
    """Parse the manifest in `text`, the content of its file.

    Raises DamagedManifestError if the text is damaged and LaterError if a later version wrote it.
    """
    try:
        fields = parse_json(text)
        written, found = fields.pop("sha256"), fields["format"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedManifestError(f"{NAME} is not whole") from None
    if _sha256(fields) != written:
        raise DamagedManifestError(f"{NAME} is not what was written: its own sum differs")
    if found != FORMAT:
        raise LaterError(f"its format is {shortened(found)}; this version reads {FORMAT}")
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        raise DamagedManifestError(f"{NAME} is not what a run saves: {first_mistake(error)}") from None


def _sha256(fields: dict[str, Any]) -> str:
    try:
        text = json.dumps(fields, sort_keys=True)
    except RecursionError:
        raise DamagedManifestError(f"{NAME} is nested too deeply") from None
    return hashlib.sha256(text.encode()).hexdigest()
