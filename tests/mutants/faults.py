"""The planted faults. Each is one edit that a tired colleague could make, and the test that sees it."""

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


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="floors: an upward import is let through",
        file="tests/house/test_floors.py",
        text="if ROOMS[target][0] > floor or other_backend:",
        planted="if other_backend:",
        test="tests/house/test_floors.py::test_a_planted_import_is_found",
    ),
)
