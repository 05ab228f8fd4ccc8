"""Stacked parameters: the layers that each one covers, all or those of its kind of block."""

from __future__ import annotations

from collections.abc import Iterator

from planc.ir.model import Model, Param, Section


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
