"""The type of a planted fault."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Replace `text`, which occurs once in `file`, by `planted`; then `test` must fail."""

    name: str
    file: str
    text: str
    planted: str
    test: str
