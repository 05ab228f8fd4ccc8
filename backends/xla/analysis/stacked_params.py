"""Stacked parameters: the layers in each stack (all, or those of one kind of block) and their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.backends.xla.analysis.pipeline import chunks, pipelined
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Model, Param, Section
from planc.ir.plan import Plan


@dataclass(frozen=True)
class StackedDims:
    """The leading dims of a stacked parameter, and the number of the layer at each index, in row-major order. None
    marks the padding of a short pipeline stage."""

    dims: tuple[int, ...]
    layers: tuple[int | None, ...]

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the index in the stack and the number of each layer, without padding."""
        yield from ((place, layer) for place, layer in enumerate(self.layers) if layer is not None)


Stacks = Mapping[str, StackedDims]
"""The stack of each block parameter, by name."""


def undivided(model: Model) -> Stacks:
    """Return the stacks of `model` without a pipeline: each has all layers that have the parameter, in order."""
    found = {p.name: numbers(model, p) for p in model.params if stacked(model, p)}
    return {name: StackedDims((len(layers),), layers) for name, layers in found.items()}


def stacks_of(plan: Plan) -> Stacks:
    """Return the stacks of the program of `plan`.

    In a pipeline their dims are [layers], or [chunks, layers of one chunk on all ranks], in layer order. The last dim
    is sharded over the ranks, so each rank holds the layers of its stages. Shorter stages are padded at their end.
    """
    model = plan.model
    if not pipelined(plan):
        return undivided(model)
    return {p.name: _by_stages(plan, set(numbers(model, p))) for p in model.params if stacked(model, p)}


def _by_stages(plan: Plan, having: set[int]) -> StackedDims:
    """Return a parameter's stack in a pipeline: for each stage its layers in `having`, padded to the longest stage."""
    stages = [[n for n in range(begin, end) if n in having] for begin, end in plan.stages]
    most = max(map(len, stages))
    layers = tuple(n for held in stages for n in (*held, *[None] * (most - len(held))))
    of_all_ranks = most * plan.pipeline
    return StackedDims((of_all_ranks,) if chunks(plan) == 1 else (chunks(plan), of_all_ranks), layers)


def stacked(model: Model, param: Param) -> bool:
    """True if `param` belongs to the repeated blocks of `model` and is stored as [layers that have it, ...]."""
    return param.section in model.blocks


def numbers(model: Model, param: Param) -> tuple[int, ...]:
    """Return the numbers of the layers that have `param`, in order."""
    return tuple(n for n, kind in enumerate(model.kinds) if kind in param.sections)


def runs(model: Model) -> Iterator[tuple[Section, dict[str, slice | None]]]:
    """Yield the kind of each run of consecutive layers of one kind in `model`, with the slice that holds these layers
    in each parameter's stack (None for the whole stack)."""
    begin = 0
    for kind, layers in ((run.section, run.layers) for run in model.runs) if model.runs else [("block", model.layers)]:
        yield kind, {p.name: _layer_slice(model, p, begin, layers) for p in model.params if kind in p.sections}
        begin += layers


def _layer_slice(model: Model, param: Param, begin: int, layers: int) -> slice | None:
    held = numbers(model, param)
    first = held.index(begin)
    return None if len(held) == layers else slice(first, first + layers)
