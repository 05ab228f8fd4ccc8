"""The sentences that the XLA target refuses: never dropped, each named with its place."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.not_lowered import not_lowered
from planc.backends.xla.layouts import spec_of
from planc.diag import Diagnostic
from planc.ir.base import Cause
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded

DTYPES = ("fp32", "bf16")


def refusals(sharded: Sharded) -> list[Diagnostic]:
    """Every reason why the plan cannot be lowered to XLA, in the plan's order."""
    plan = sharded.plan
    if missing := not_lowered(plan, "xla"):
        return missing
    found = (*_split(plan), *_stores(plan), *_dtypes(plan), *_uneven(sharded))
    return sorted(dict.fromkeys(found), key=lambda d: d.span)


def _refused(cause: Cause, why: str, help: str = "") -> Diagnostic:
    message = f"the xla target cannot do `{cause.via or cause.sentence}`: {why}"
    return Diagnostic(code="E0901", message=message, span=cause.span, label=why, help=help)


def _split(plan: Plan) -> Iterator[Diagnostic]:
    if plan.split is not None:
        why = "it has no pipeline schedules yet"
        yield _refused(plan.split.cause, why, "lower it for cuda, or give the axis to fsdp")


def _stores(plan: Plan) -> Iterator[Diagnostic]:
    for store in plan.stores:
        if store.dtype not in ("", "fp32"):
            yield _refused(store.cause, f"it keeps {store.noun} in fp32, not {store.dtype}")


def _dtypes(plan: Plan) -> Iterator[Diagnostic]:
    cause, named = plan.precision.cause, (plan.precision.compute, plan.precision.reduce)
    if cause is not None and (bad := [d for d in named if d not in DTYPES]):
        yield _refused(cause, f"it computes and reduces in fp32 or bf16, not {' and '.join(dict.fromkeys(bad))}")


def _uneven(sharded: Sharded) -> Iterator[Diagnostic]:
    """XLA lays out what divides evenly only; torch pads."""
    plan = sharded.plan
    lengths = {
        **plan.model.sizes,
        "batch": plan.batch.microbatch_sequences * plan.data_parallel,
        "sequence": plan.batch.sequence_tokens,
    }
    for shard in plan.shards:
        parts = plan.mesh.size(*spec_of(plan, (shard.dim,), {shard.dim: shard.axes})[0])
        length = lengths.get(shard.dim, parts)
        if length % parts:
            why = f"it divides {shard.dim} evenly, and {length} is no multiple of {parts}"
            yield _refused(shard.cause, why)
