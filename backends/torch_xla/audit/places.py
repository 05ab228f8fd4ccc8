"""Finds the line of user code that runs an operation: the innermost frame outside torch and the audit."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

from planc.diag.fast_dataclass import dataclass

OURS = str(Path(__file__).parent)
TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Place:
    """A line of a source file (1-based) and its function."""

    file: str
    line: int
    function: str


def is_watched(code: CodeType) -> bool:
    """True if `code` is from a file outside torch and the audit."""
    return not code.co_filename.startswith((TORCH, OURS, "<"))


def here() -> Place | None:
    """Returns the innermost line of user code now running; None if there is none, as in a backward run by autograd."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if is_watched(code):
            return Place(code.co_filename, frame.f_lineno, code.co_qualname)
        if code.co_filename.startswith(OURS) and code.co_name == "take_step":
            return None
        frame = frame.f_back
    raise AssertionError("a step is taken by take_step")
