"""The facts of a serve plan that decide the text of its `sync`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SyncFacts:
    """Facts of a serve plan. The defaults are those of the module as it stands."""

    colocated: bool = True
    """Rank i of the generator is rank i of the trainer; else the generator's ranks follow."""
    float8: bool = True
    """The generator holds matrices as float8, with scales."""
    block: int = 128
    """Elements along each side of a block with one scale; 0: one scale for a matrix."""


FACTS = SyncFacts()
