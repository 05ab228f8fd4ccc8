"""Stacked parameters: the layers that each one covers, all or those of its kind of block, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.backends.xla.analysis.pipeline import chunks, pipelined
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Model, Param, Section
from planc.ir.plan import Plan


@dataclass(frozen=True)
class StackedDims:
    """The leading dims of the array of all layers of a parameter, and the layer at each of their places in row-major
    order; None where a pipeline's stage is filled up."""

    dims: tuple[int, ...]
    layers: tuple[int | None, ...]

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """The place and the number of each layer, in the order of the layers."""
        yield from ((place, layer) for place, layer in enumerate(self.layers) if layer is not None)


Stacks = Mapping[str, StackedDims]
"""The stack of each parameter of blocks, by its name."""


def undivided(model: Model) -> Stacks:
    """The stacks of `model` without a pipeline: the layers one after the other."""
    found = {p.name: numbers(model, p) for p in model.params if stacked(model, p)}
    return {name: StackedDims((len(layers),), layers) for name, layers in found.items()}


def stacks_of(plan: Plan) -> Stacks:
    """The stacks of a program of `plan`.

    In a pipeline [layers], or [chunks, layers of one chunk on all ranks], in the layers' order: the last dim is divided
    over the ranks, so that each has the layers of its stages. Stages that have fewer are filled up at their ends.
    """
    model = plan.model
    if not pipelined(plan):
        return undivided(model)
    return {p.name: _by_stages(plan, set(numbers(model, p))) for p in model.params if stacked(model, p)}


def _by_stages(plan: Plan, having: set[int]) -> StackedDims:
    """The stack of a parameter that the layers `having` have."""
    stages = [[n for n in range(begin, end) if n in having] for begin, end in plan.stages]
    most = max(map(len, stages))
    layers = tuple(n for held in stages for n in (*held, *[None] * (most - len(held))))
    of_all_ranks = most * plan.pipeline
    return StackedDims((of_all_ranks,) if chunks(plan) == 1 else (chunks(plan), of_all_ranks), layers)


def stacked(model: Model, param: Param) -> bool:
    """True when `param` belongs to the repeated blocks of `model`: an array [layers that have it, ...]."""
    return param.section in model.blocks


def numbers(model: Model, param: Param) -> tuple[int, ...]:
    """The indices of the layers in the stack of `param`, in order."""
    return tuple(n for n, kind in enumerate(model.kinds) if kind in param.sections)


def runs(model: Model) -> Iterator[tuple[Section, dict[str, slice | None]]]:
    """Neighbouring layers of one kind of `model`: the kind, and for each parameter its part of the stack, or None for
    all."""
    begin = 0
    for kind, layers in ((run.section, run.layers) for run in model.runs) if model.runs else [("block", model.layers)]:
        yield kind, {p.name: _layer_slice(model, p, begin, layers) for p in model.params if kind in p.sections}
        begin += layers


def _layer_slice(model: Model, param: Param, begin: int, layers: int) -> slice | None:
    held = numbers(model, param)
    first = held.index(begin)
    return None if len(held) == layers else slice(first, first + layers)
