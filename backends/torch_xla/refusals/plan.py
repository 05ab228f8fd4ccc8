"""The sentences of a plan that torch_xla cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.xla.refusals.plan import refusals as of_xla
from planc.diag import Diagnostic
from planc.ir.base import Cause
from planc.ir.sharding import Sharded


def refusals(sharded: Sharded) -> list[Diagnostic]:
    """Every reason why the plan cannot be lowered: those of the target, and of what torch_xla annotates."""
    found = dict.fromkeys((*of_xla(sharded), *(_refused(*why) for why in _limits(sharded))))
    return sorted(found, key=lambda d: d.span)


def _limits(sharded: Sharded) -> Iterator[tuple[Cause, str]]:
    plan = sharded.plan
    if plan.model.top_k and plan.model.cause is not None:
        yield plan.model.cause, "torch_xla 2.9 ends in XLA while it compiles the routing of tokens to experts"
    if plan.split is not None:
        yield plan.split.cause, "it has no pipeline"
    yield from ((view.cause, "its mesh has one factorisation") for view in plan.mesh.views)
    for shard in plan.shards:
        inside = shard.dim in ("experts", "expert_ffn") or (shard.dim == "sequence" and shard.region != "residual")
        if inside or shard.region not in ("", "residual"):
            yield shard.cause, f"it does not divide {shard.dim} there"
    yield from ((store.cause, "it stores all regions alike") for store in plan.stores if store.region)
    if plan.optimizer.cause is not None and plan.optimizer.name != "adamw":
        yield plan.optimizer.cause, "it has AdamW alone"
    if plan.attention is not None:
        yield plan.attention.cause, "it has torch's attention alone"
    if plan.route.cause is not None and plan.route.method != "dropless":
        yield plan.route.cause, "its experts have a place for every token"
    if plan.recompute.cause is not None:
        yield plan.recompute.cause, "it keeps what the backward needs"


def _refused(cause: Cause, why: str) -> Diagnostic:
    message = f"the torch_xla runtime cannot do `{cause.via or cause.sentence}`: {why}"
    return Diagnostic("E0901", message, cause.span, label=why, help="leave out `--runtime torch_xla` for JAX")
