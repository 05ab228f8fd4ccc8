"""The facts of a plan that decide the text of its torch program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TorchFacts:
    """Facts of a plan. The program modules test them; the defaults are those of the modules as they stand."""

    balanced: bool = True
    """A rank holds a chunk from each end of a sequence, not one chunk."""
    window: int = 0
    """Tokens that a row of a ring attends to, itself included; 0 for all before it."""
    pads_values: bool = False
    """Values of a ring are narrower than keys."""
    saves_rings: bool = False
    """Recomputed blocks save the outputs of their rings."""
    reduce: str = "fp32"
    """The dtype in which gradients are summed: fp32 or bf16."""
    gathers_single: bool = True
    """torch names the all-gather with a gradient `all_gather_single_autograd`."""
    kernel_cause: str = ""
    """The sentence that chooses the attention kernel."""

    colocated: bool = True
    """Rank i of a generator is rank i of its trainer; else the generator's ranks follow the trainer's."""
    float8: bool = True
    """The generator holds matrices as float8, with scales."""
    block: int = 128
    """Elements along each side of a block of float8 with one scale; 0: one scale for a matrix."""


FACTS = TorchFacts()
