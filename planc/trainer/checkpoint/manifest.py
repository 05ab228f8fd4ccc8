"""`checkpoint.json`, `planc.checkpoint/1`: what a checkpoint holds and what its files must be."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field

from planc.ir.frozen import Frozen

NAME = "checkpoint.json"
HISTORY = "history.json"
FORMAT = "planc.checkpoint/1"


class File(Frozen):
    """A file of the checkpoint."""

    bytes: int
    sha256: str


class Box(Frozen):
    """One box of a tensor: its file, and the part of the tensor that the file holds."""

    file: str
    offset: tuple[int, ...]
    size: tuple[int, ...]


class Stored(Frozen):
    """A whole tensor and the boxes that make it up. Values are little-endian float32."""

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


class Position(Frozen):
    """Position in the data. The next batch is a function of `step` and the seed."""

    step: int
    sequences: int
    tokens: int


class Manifest(Frozen):
    """All but the values."""

    format: Literal["planc.checkpoint/1"] = "planc.checkpoint/1"
    step: int
    optimizer_steps: int
    """Updates made: fewer than `step` where steps were skipped."""
    plan: str
    plan_sha256: str
    mesh: dict[str, int]
    target: str
    runtime: str
    versions: dict[str, str]
    model: str
    course: dict[str, Any]
    """Settings that decide the losses beside the model and the data: batch, seed, learning rate, optimizer."""
    data_sha256: str
    position: Position
    saved_at: str
    """UTC, ISO 8601."""
    files: dict[str, File] = Field(default_factory=dict)
    tensors: dict[str, Stored] = Field(default_factory=dict)

    def text(self) -> str:
        """The file's text: the fields, and their own sum under `sha256`."""
        fields = self.model_dump(mode="json")
        return json.dumps({**fields, "sha256": _sum(fields)}, indent=1, allow_nan=False) + "\n"


class UnreadableError(ValueError):
    """A manifest that was damaged."""


class LaterError(ValueError):
    """A manifest of a format that this version does not know."""


def read(text: str) -> Manifest:
    """The manifest in `text`, the content of its file.

    Raises UnreadableError when the text is damaged and LaterError when a later version wrote it.
    """
    try:
        fields = json.loads(text)
        written, found = fields.pop("sha256"), fields["format"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadableError(f"{NAME} is not whole") from None
    if _sum(fields) != written:
        raise UnreadableError(f"{NAME} is not what was written: its own sum differs")
    if found != FORMAT:
        raise LaterError(f"its format is {found}; this version reads {FORMAT}")
    return Manifest.model_validate(fields)


def _sum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
