"""Before and after the pipeline its ranks share the sequences: embedding, head and loss run on all of them.

Once a step, on each rank's share of the batch. The gradients of their parameters are sums over the
pipeline's ranks too: in one all-reduce, but for a matmul's weight whose gradient is cut first. Read from
pp 2 > fsdp 2: 51456 bytes over pp and fsdp (embedding), 34304 over fsdp and then 17152 over pp (head).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.emit.model import own_gradient
from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import DTYPE_BYTES, Collective, CollectiveOp
from planc.ir.plan import Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.sharding.local import param_elements

NAME = "embedding_and_head_on_all_ranks"
ENDS = ("first", "last")


def apply(sharded: Sharded, rows: Rows) -> Rows:
    plan = sharded.plan
    if not pipelined(plan):
        return rows
    inside = [row for row in rows if row.section not in ENDS and not _sums_copies(row)]
    kept = [_shared_by_ranks(plan, row) for row in rows if row.section in ENDS and row.carries != "grad"]
    kept += [row for p in sharded.params if p.param.section in ENDS for row in _gradient_sums(sharded, p)]
    return (*inside, *(replace(row, stage=stage) for stage in range(plan.pipeline) for row in kept))


def _sums_copies(row: Collective) -> bool:
    """True for the sum of a weight's gradients that the plan has between both ends: here it is one parameter."""
    return row.carries == "grad" and row.section == "step"


def _shared_by_ranks(plan: Plan, row: Collective) -> Collective:
    """An activation of all microbatches on a rank's share of them; a parameter is gathered once."""
    if row.phase == "optimizer" or row.count < plan.microbatches:
        return changed(row, NAME)
    size = plan.microbatches / plan.pipeline if row.carries == "activation" else 1
    return changed(row, NAME, per="step", count=row.count // plan.microbatches, buffer_bytes=row.buffer_bytes * size)


def _gradient_sums(sharded: Sharded, p: ParamSharding) -> Iterator[Collective]:
    plan = sharded.plan
    assert plan.split is not None
    summed = set(p.grad_partial)
    matmul = any(o.op.kind == "matmul" and p.param.name in o.op.params for o in sharded.op.values())
    elements: float = param_elements(plan, p)
    scattered = summed & set(p.stored["grads"])
    if p in sharded.tied:  # the lookup's part is summed by itself
        yield _gradient_sum(sharded, p, "all_reduce", summed | {plan.split.axis}, elements)
    if matmul and own_gradient(plan) and scattered and cut(plan, p, "grads") is not None:
        op: CollectiveOp = "reduce_scatter" if platform(sharded) == "tpu" else "all_reduce"
        yield _gradient_sum(sharded, p, op, summed, elements)
        elements /= plan.mesh.size(*scattered)
        summed = set()
    yield _gradient_sum(sharded, p, "all_reduce", summed | {plan.split.axis}, elements)


def _gradient_sum(sharded: Sharded, p: ParamSharding, op: CollectiveOp, axes: set[str], elements: float) -> Collective:
    plan = sharded.plan
    ordered = plan.mesh.in_order(axes)
    return Collective(
        op=op,
        axes=ordered,
        group_size=plan.mesh.size(*ordered),
        stage=0,
        phase="backward",
        carries="grad",
        tensor=p.param.name,
        section=p.param.section,
        dtype="fp32",
        per="step",
        count=1,
        buffer_bytes=elements * DTYPE_BYTES["fp32"],
        realised_by=(NAME,),
        cause=plan.split.cause if plan.split else None,
    )
