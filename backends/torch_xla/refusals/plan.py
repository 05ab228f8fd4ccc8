"""The sentences of a plan that torch_xla cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import refused
from planc.diag import Diagnostic
from planc.ir.base import Cause
from planc.ir.sharding import Sharded


def refusals(sharded: Sharded) -> list[Diagnostic]:
    """Refusals of this runtime for the plan in `sharded`, beside those of its target."""
    return [_refused(*why) for why in _limits(sharded)]


def _limits(sharded: Sharded) -> Iterator[tuple[Cause, str]]:
    plan = sharded.plan
    if plan.model.top_k and plan.model.cause is not None:
        yield plan.model.cause, "torch_xla 2.9 ends in XLA while it compiles the routing of tokens to experts"
    if plan.split is not None:
        yield plan.split.cause, "it has no pipeline"
    narrow = dict.fromkeys(store.cause for store in plan.stores if store.dtype not in ("", "fp32"))
    yield from ((cause, "it keeps state in fp32") for cause in narrow)
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
    return refused("torch_xla runtime", cause, why, help="leave out `--runtime torch_xla` for JAX", label=why)
