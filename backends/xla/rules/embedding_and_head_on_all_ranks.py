"""In a pipeline, all ranks run the embedding, head and loss, each on its share of the rows.

The embedding runs once a step, on each rank's share of all rows; the head runs in each microbatch, on a share of its
rows. The gradients of their parameters are also summed over the pipeline's ranks, once a step: the embedding's in one
all-reduce with the data ranks on TPUs and in two on virtual CPU devices (ranks that shard sequences together with the
pipeline's), the head's in its stored layout. Read from pp 2 > fsdp 2, 4 microbatches, an embedding of 134 x 64: on CPUs
34,304 bytes over fsdp and then over pp (embedding), four times 34,304 over fsdp and then 17,152 over pp (head).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import DTYPE_BYTES, Collective
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
    ends = [row for row in rows if row.section in ENDS and not (row.carries == "grad" and row.section == "first")]
    kept = [_shared_by_ranks(plan, row) for row in ends]
    kept += [row for p in sharded.params for row in _gradient_sums(sharded, p)]
    return (*inside, *(replace(row, stage=stage) for stage in range(plan.pipeline) for row in kept))


def _sums_copies(row: Collective) -> bool:
    """True if `row` sums a tied weight's gradient over the first and last stage, which share one parameter here."""
    return row.carries == "grad" and row.section == "step"


def _shared_by_ranks(plan: Plan, row: Collective) -> Collective:
    """Return `row`, a collective of the embedding or head, as issued by pipeline ranks that each have a share of the
    tokens. The embedding runs once a step, on all microbatches."""
    if row.carries != "activation":
        first = row.section == "first" and row.phase != "optimizer"
        return changed(row, NAME, per="step", count=max(row.count // plan.microbatches, 1)) if first else row
    if row.section == "last":
        return changed(row, NAME, buffer_bytes=row.buffer_bytes / plan.pipeline)
    size = plan.microbatches / plan.pipeline
    return changed(row, NAME, per="step", count=row.count // plan.microbatches, buffer_bytes=row.buffer_bytes * size)


def _gradient_sums(sharded: Sharded, p: ParamSharding) -> Iterator[Collective]:
    """Yield the collectives that sum the gradient of `p`, if in embedding or head, over the pipeline's ranks."""
    plan = sharded.plan
    assert plan.split is not None
    elements: float = param_elements(plan, p)
    over = {plan.split.axis}
    if "first" in p.param.sections:
        summed, batch = set(p.grad_partial), set(p.grad_partial) & set(plan.data_axes)
        if platform(sharded) == "tpu":
            yield _gradient_sum(sharded, p, over | summed, elements)
        else:
            yield from (_gradient_sum(sharded, p, axes, elements) for axes in (batch, over | summed - batch) if axes)
    if "last" in p.param.sections:
        divided = cut(plan, p, "grads") is not None
        yield _gradient_sum(sharded, p, over, elements / plan.mesh.size(*p.stored["grads"]) if divided else elements)


def _gradient_sum(sharded: Sharded, p: ParamSharding, axes: set[str], elements: float) -> Collective:
    plan = sharded.plan
    ordered = plan.mesh.in_order(axes)
    return Collective(
        op="all_reduce",
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
