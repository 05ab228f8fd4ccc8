"""Refuses sentences that are not implemented together with `freeze` and `lora`."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import Refusal
from planc.backends.cuda.analysis.replays import is_selective
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.ir.base import Cause
from planc.ir.sharding import Sharded


def refused(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses sentences of the plan in `sharded` that do not work with frozen parameters (`freeze`, `lora`), and
    matrices that LoRA cannot update."""
    plan = sharded.plan
    sentence = plan.lora or plan.freeze
    if sentence is None:
        return
    beside: dict[str, Cause | None] = {
        "a pipeline": plan.split.cause if plan.split else None,
        "context parallelism": plan.cause_of_shard("sequence", roles.context[0]) if roles.context else None,
        "float8 matmuls": next((q.cause for q in plan.quantize), None),
        "compiled blocks": next((c.cause for c in plan.compiles if c.what == "blocks"), None),
        "overlapped matmuls": next((o.cause for o in plan.overlaps), None),
        "state on the host": next((o.cause for o in plan.offloads), None),
        "Muon": plan.optimizer.cause if plan.optimizer.name == "muon" else None,
        "several layers in a bucket": plan.gather.cause if plan.gather and plan.gather.bucket > 1 else None,
        "prefetched layers": plan.gather.cause if plan.gather and plan.gather.prefetch else None,
        "recompute of only some layers": plan.recompute.cause if plan.recompute.every > 1 else None,
    }
    for what, cause in beside.items():
        if cause is not None:
            yield cause, f"frozen parameters are not implemented with {what}", "leave one of them out"
    named = plan.recompute.ops not in ((), ("blocks",), ("attention.core",))
    if named or plan.recompute.kept or (plan.recompute.ops and is_selective(sharded)):
        yield plan.recompute.cause, "its memory with frozen parameters is not modelled", "`recompute blocks`"
    yield from _updates(sharded, roles)


def _updates(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses LoRA of a matrix with a strided or sequence shard of tensor parallelism."""
    lora = sharded.plan.lora
    if lora is None:
        return
    styler = Styler(sharded, roles)
    for kind in sharded.model.blocks:
        for b in styler.section(kind):
            if not b.o.op.update:
                continue
            if b.rows or b.weight.inner:
                where = f"{b.rows[0]} at {b.o.op.name}" if b.rows else f"inside a dim of {b.o.op.name}"
                yield lora.cause, f"tensor parallelism shards {where}", "shard heads and ffn, or name other matmuls"
                return
