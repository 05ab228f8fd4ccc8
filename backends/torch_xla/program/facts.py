"""The facts of a plan that decide the text of its torch_xla program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TorchXlaFacts:
    """Facts of a plan. The program module tests them; the defaults are those of the module as it stands."""

    takes_inputs: bool = True
    """Inputs of attention are redistributed: keys and values are gathered over the ranks that shard a sequence."""
    experts: bool = True
    """Some blocks have experts."""
    capacity: bool = True
    """An expert has a number of slots; else it computes every token."""
    replays: bool = True
    """Blocks are recomputed in the backward."""


FACTS = TorchXlaFacts()
