"""Refusals of plans with experts on the XLA target."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import Refusal
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.analysis.mesh_factors import fits
from planc.ir.model import EXPERTS, SLOTS
from planc.ir.plan import NOUNS
from planc.ir.sharding import Sharded
from planc.sharding.propagate import override_of


def refused(sharded: Sharded) -> Iterator[Refusal]:
    """Yield a refusal for each sentence about experts of the plan in `sharded` that the target does not support."""
    plan = sharded.plan
    if not fits(plan):
        view = plan.mesh.views[0]
        sizes = " > ".join(f"{a.name} {a.size}" for a in view.axes)
        what = f"{sizes} and {', '.join(view.of)} cannot be factored into common axes"
        yield view.cause, what, "choose sizes of which one divides the other"
        return
    experts = XlaExpertAxes(sharded)
    if experts.ops:
        yield from _node_limit(experts)
        yield from _dims(experts)
        yield from _shares(experts)
        yield from _stores(experts)


def _node_limit(experts: XlaExpertAxes) -> Iterator[Refusal]:
    route = experts.plan.route
    if route.node_limit:
        yield route.cause, "the model's router picks experts on any node", "leave `node_limit` out"
    if route.copies != "choice":
        yield route.cause, "the program sends a copy of a token for each expert that it chose", "leave `copies` out"


def _dims(experts: XlaExpertAxes) -> Iterator[Refusal]:
    """Refuse experts that are sharded on a dim other than `experts`, `expert_ffn` and the token slots, parameters of
    experts with a layout of their own, and experts with biases."""
    plan = experts.plan
    for o in experts.ops:
        for dim, axes in o.layout.items():
            cause = plan.cause_of_shard(dim, axes[0], EXPERTS)
            if dim not in ("experts", "expert_ffn", SLOTS):
                yield cause, f"{o.op.name} with {dim} sharded", "shard experts or expert_ffn"
                return
    for p in experts.params:
        override = override_of(plan, p.param)
        if override is not None:
            yield override.cause, "one function gathers all weights of the experts", "shard all of them alike"
    if any(len(o.op.params) > 1 for o in experts.ops):
        yield plan.model.cause, "its experts have biases", "lower the plan for cuda"


def _shares(experts: XlaExpertAxes) -> Iterator[Refusal]:
    """Refuse tensor parallelism of experts over several axes of which some shard the tokens and others do not."""
    different = set(experts.tensor) & set(experts.tokens)
    if different and not experts.gathers:
        cause = experts.plan.cause_of_shard("expert_ffn", experts.plan.axes_of("expert_ffn", EXPERTS)[0], EXPERTS)
        what = f"of {' and '.join(experts.tensor)}, only {' and '.join(sorted(different))} shards the tokens"
        yield cause, what, "shard expert_ffn over axes that all shard the tokens, or over axes that do not"


def _stores(experts: XlaExpertAxes) -> Iterator[Refusal]:
    """Refuse state that is sharded only for experts or only for other parameters: one function gathers both."""
    plan = experts.plan
    if not plan.store("optimizer", EXPERTS):
        return
    for noun in NOUNS:
        if bool(plan.store(noun)) != bool(plan.store(noun, EXPERTS)):
            cause = plan.cause_of_store(noun, EXPERTS) or plan.cause_of_store(noun)
            yield cause, f"{noun} are sharded for the experts or for the rest, and not for both", "store both alike"
