"""Refuses the sentences of a plan that torch_xla cannot run."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import refused
from planc.diag import Diagnostic
from planc.ir.base import Cause
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded


def refusals(sharded: Sharded) -> list[Diagnostic]:
    """Returns the reasons why torch_xla cannot run the plan in `sharded`, besides those of the xla target."""
    return [_refused(*why) for why in _limits(sharded)]


def _limits(sharded: Sharded) -> Iterator[tuple[Cause, str]]:
    plan = sharded.plan
    if plan.split is not None:
        yield plan.split.cause, "it has no pipeline"
    narrow = dict.fromkeys(store.cause for store in plan.stores if store.dtype not in ("", "fp32"))
    yield from ((cause, "it keeps state in fp32") for cause in narrow)
    yield from ((quantize.cause, "it has torch's matmuls alone") for quantize in plan.quantize)
    yield from ((view.cause, "its mesh has one factorisation") for view in plan.mesh.views)
    for shard in plan.shards:
        if shard.region not in ("", "residual"):
            yield shard.cause, f"it does not divide {shard.dim} there"
    yield from ((store.cause, "it stores all regions alike") for store in plan.stores if store.region)
    if plan.optimizer.cause is not None and plan.optimizer.name != "adamw":
        yield plan.optimizer.cause, "it has AdamW alone"
    yield from _attention(plan)
    if plan.chunked_loss is not None and plan.loss_chunks > 1:
        yield plan.chunked_loss.cause, "its loss is in one part"
    recompute = plan.recompute
    if recompute.cause is not None and recompute.ops and (not recompute.blocks or recompute.kept):
        yield recompute.cause, "it runs whole blocks again, or nothing"


def _attention(plan: Plan) -> Iterator[tuple[Cause, str]]:
    kernel = plan.attention
    if kernel is None:
        return
    if kernel.method != "all_gather":
        yield kernel.cause, "it has torch's attention alone"
    elif kernel.balance == "headtail":
        yield kernel.cause, "it holds sequences in order: write all_gather(balance = none)"


def _refused(cause: Cause, why: str) -> Diagnostic:
    return refused("torch_xla runtime", cause, why, help="leave out `--runtime torch_xla` for JAX", label=why)
