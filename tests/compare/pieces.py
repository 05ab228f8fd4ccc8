"""A layout's checkpoint as boxes, as `planc diff` derives them, and as plain index masks do."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from planc.ir.model import Param
from planc.ir.plan import Noun, Plan
from planc.ir.session import STATE
from planc.ir.target import Target
from planc.lowering import state_layout as rest
from planc.sharding.shard_intervals import layers_on_rank, stored_layout
from tests.plans import propagated

Boxes = dict[str, set[tuple[tuple[int, ...], tuple[int, ...]]]]


def noun_of(kind: str) -> Noun:
    """The noun whose layout a kind of checkpoint tensor has."""
    return "params" if kind == STATE[0] else "optimizer"


def pieces_of(plan: Plan, target: Target | None) -> Boxes:
    """Tensor of the checkpoint to the distinct (offset, size) of its boxes over all ranks."""
    sharded = propagated(plan)
    rule = rest(sharded, target)
    found: Boxes = {}
    for kind, p in product(STATE, sharded.params):
        keep = stored_layout(sharded, p, noun_of(kind), rule)
        for rank in range(plan.mesh.devices):
            for runs in product(*keep.piece(rank)):
                box = (tuple(a for a, _ in runs), tuple(b - a for a, b in runs))
                for layer in layers_on_rank(plan, p.param, rank):
                    found.setdefault(f"{kind}.{p.param.name.replace('*', str(layer))}", set()).add(box)
    return found


def masks(plan: Plan, rank: int) -> dict[str, Any]:
    """Which elements of every tensor of the checkpoint a rank keeps, cut dimension by dimension with numpy.

    For layouts that store on the first dimension, and pipelines of one stage a rank.
    """
    sharded = propagated(plan)
    found = {}
    for kind, p in product(STATE, sharded.params):
        indices = [np.arange(n) for n in plan.model.shape(p.param)]
        stored = p.stored[noun_of(kind)] or p.stored["optimizer"]
        for dim, axes in enumerate(p.compute):
            for name in plan.mesh.in_order(axes):
                axis = plan.mesh.axis(name)
                indices[dim] = _chunk(indices[dim], axis.size, rank // axis.stride % axis.size)
            if dim == 0:
                over = plan.mesh.in_order(stored)
                indices[dim] = _chunk(indices[dim], plan.mesh.size(*over), plan.mesh.place_of(rank, over))
        for layer in _layers(plan, p.param, rank):
            mask = np.zeros(plan.model.shape(p.param), bool)
            mask[np.ix_(*indices)] = True
            found[f"{kind}.{p.param.name.replace('*', str(layer))}"] = mask
    return found


def _layers(plan: Plan, param: Param, rank: int) -> list[int]:
    """The layers of a parameter on a rank; [-1] where it holds the end of the model that has the parameter."""
    stage = rank // plan.mesh.axis(plan.split.axis).stride % plan.pipeline if plan.split else 0
    if "*" in param.name:
        return list(range(*plan.stages[stage]))
    return [-1] if stage == (0 if param.section == "first" else len(plan.stages) - 1) else []


def _chunk(indices: Any, parts: int, at: int) -> Any:
    """The part that `torch.chunk` gives: full parts first."""
    each = -(-len(indices) // parts)
    return indices[each * at : each * (at + 1)]
