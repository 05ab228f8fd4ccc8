"""Gradients of experts that are not gathered at use are all-reduced in fp32 over the ranks that replicate the experts.

The program sums them explicitly, over all axes at once, before XLA knows their stored layout.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import ParamSharding, Sharded
from planc.sharding.local import param_elements

NAME = "all_reduce_expert_gradients"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    experts = XlaExpertAxes(sharded)
    if experts.in_use:
        return rows
    whole = {p.param.name: p for p in experts.params}
    kept = [r for r in rows if r.carries != "grad" or r.tensor not in whole]
    sums = {(r.tensor, r.stage): r for r in rows if r.carries == "grad" and r.tensor in whole}
    return (*kept, *(_all_reduced(sharded, row, whole[row.tensor]) for row in sums.values()))


def _all_reduced(sharded: Sharded, row: Collective, p: ParamSharding) -> Collective:
    mesh = sharded.plan.mesh
    axes = mesh.in_order(p.grad_partial)
    moved = replace(row, axes=axes, group_size=mesh.size(*axes))
    elements = param_elements(sharded.plan, p)
    return changed(
        moved, NAME, op="all_reduce", phase="backward", dtype="fp32", buffer_bytes=elements * DTYPE_BYTES["fp32"]
    )
