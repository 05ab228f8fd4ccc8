"""The facts of a serve plan that decide the text of its `sync`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SyncFacts:
    """Facts of a serve plan. The defaults are those of the module as it stands."""

    float8: bool = True
    """The generator holds matrices as float8, with scales."""
    block: int = 128
    """Elements along each side of a block with one scale; 0: one scale for a matrix."""
    restacks: bool = True
    """Trainer and generator have layers in another order, or stages of unequal lengths."""
    pads: bool = True
    """The generator's parts of some tensors are unequal: it has padding at their ends."""


FACTS = SyncFacts()
