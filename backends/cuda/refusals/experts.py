"""Refuses sentences about experts that torch cannot run, or that planc does not lower."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import Refusal
from planc.backends.cuda.analysis.expert_mesh import stored_otherwise
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.model import EXPERTS, SLOTS
from planc.ir.plan import NOUNS
from planc.ir.sharding import Sharded


def refused(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Yields a refusal for every sentence about experts, in the plan of `sharded`, that torch cannot run."""
    if roles.experts.ops:
        yield from _node_limit(sharded)
        yield from _dims(sharded, roles)
        yield from _weights_of_one_expert(roles)
        yield from _shares(sharded, roles)
        yield from _stores(sharded, roles)


def _node_limit(sharded: Sharded) -> Iterator[Refusal]:
    route = sharded.plan.route
    if route.node_limit:
        what = "the model's router does not limit the nodes of a token's experts"
        yield route.cause, what, "leave `node_limit` out"
    if route.copies != "choice":
        yield route.cause, "the program sends a copy of a token for each expert that it chose", "leave `copies` out"


def _dims(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses experts sharded on any other dims than experts, expert_ffn, and the expert capacity's slots."""
    plan = sharded.plan
    for o in roles.experts.ops:
        for dim in o.layout:
            if dim not in ("experts", "expert_ffn", SLOTS):
                yield (
                    plan.cause_of_shard(dim, o.layout[dim][0], EXPERTS),
                    f"{o.op.name} with {dim} sharded",
                    "shard experts or expert_ffn",
                )
                return


def _weights_of_one_expert(roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses experts whose weights are sharded over different axes: tokens are dispatched once for all weights of an
    expert."""
    experts = roles.experts
    for dim, axes in (("experts", experts.exchange), ("expert_ffn", experts.tensor)):
        for p in experts.params:
            at = next((i for i, dims in enumerate(p.param.shape_dims) if dim in dims), None)
            if at is not None and set(axes) - set(p.compute[at]):
                what = f"{p.param.name} is not sharded over {' and '.join(axes)}, as other weights of the experts are"
                yield p.cause, what, "shard all of an expert's weights equally"
                return


def _shares(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses tensor parallelism of experts over several axes of which only some shard the tokens, and over experts
    with biases."""
    experts = roles.experts
    different = set(experts.tensor) & set(experts.tokens)
    if different and not experts.gathers:
        cause = sharded.plan.cause_of_shard("expert_ffn", experts.tensor[0], EXPERTS)
        what = f"of {' and '.join(experts.tensor)}, only {' and '.join(sorted(different))} shards the tokens"
        yield cause, what, "shard expert_ffn over axes that all shard the tokens, or over others"
    if experts.tensor and any(len(o.op.params) > 1 for o in experts.ops):
        cause = sharded.plan.cause_of_shard("expert_ffn", experts.tensor[0], EXPERTS)
        yield cause, "a bias of an expert would be added by every rank that shares it", "leave expert_ffn unsharded"


def _stores(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses parameters, gradients and optimizer state of experts that are sharded over different axes, or over axes
    that do not shard the tokens: fully_shard shards all state over the same axes."""
    plan, experts = sharded.plan, roles.experts
    cause = plan.cause_of_store("optimizer", EXPERTS)
    for noun in NOUNS:
        axes = experts.stored(noun)
        if axes and axes != experts.shard:
            what = f"experts' {noun} over {' and '.join(axes)} but optimizer over {' and '.join(experts.shard)}"
            yield plan.cause_of_store(noun, EXPERTS), what, "store all of them over the same axes"
    for noun in stored_otherwise(experts):
        yield cause, f"{noun} are sharded for either the experts or the rest, and not for both", "store both equally"
    strange = [a for a in experts.shard if a not in experts.params[0].grad_partial]
    if strange:
        yield cause, f"{' and '.join(strange)} does not shard the experts' tokens", "store over axes that do"
