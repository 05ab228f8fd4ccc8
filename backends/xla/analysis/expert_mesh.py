"""Roles of the axes at the experts, in the emitted mesh's axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from planc.backends.common.expert_axes import ExpertAxes
from planc.backends.xla.analysis.layouts import Spec, cut, param_spec
from planc.backends.xla.analysis.mesh_factors import parts
from planc.ir.base import Cause
from planc.ir.model import EXPERTS, Op
from planc.ir.sharding import ParamSharding


@dataclass(frozen=True)
class XlaExpertAxes(ExpertAxes):
    """The axes at the experts, in the emitted mesh's axes."""

    @cached_property
    def combine(self) -> Op:
        """The op that returns the experts' outputs to their tokens."""
        return next(o.op for o in self.sharded.op.values() if o.op.kind == "combine")

    @cached_property
    def sequence(self) -> tuple[str, ...]:
        """The axes that divide the sequences of the tokens."""
        return self.emitted(self.plan.axes_of("sequence", "residual"))

    @cached_property
    def dividing(self) -> tuple[str, ...]:
        """The axes that divide anything where tokens meet experts."""
        resting = (a for p in self.params for axes in self.resting(p) for a in axes)
        return tuple(dict.fromkeys((*self.tokens, *self.tensor, *self.exchange, *self.sequence, *resting)))

    @property
    def holders(self) -> int:
        """Number of ranks that the experts are divided over."""
        return self.plan.mesh.size(*self.plan.axes_of("experts", EXPERTS))

    @property
    def alone(self) -> bool:
        """True if a rank holds one expert."""
        return self.holders == self.plan.model.sizes["experts"]

    @property
    def ragged(self) -> bool:
        """True if ranks exchange as many rows as there are; XLA 0.10 does so on accelerators, and on CPUs not yet."""
        cluster = self.plan.cluster
        return not self.capacity and (cluster.has_tpus or not cluster.chip.hosts_itself)

    @property
    def in_use(self) -> bool:
        """True if experts' weights are gathered where they are used, in each pass."""
        return self.plan.gathers_each_pass(EXPERTS)

    @property
    def cause(self) -> Cause | None:
        """The sentence that says how tokens meet experts, or where experts are."""
        plan = self.plan
        view = plan.view_of(EXPERTS)
        divided = plan.axes_of("experts", EXPERTS)
        found = plan.cause_of_shard("experts", divided[0], EXPERTS) if divided else None
        return plan.route.cause or found or (view.cause if view else None)

    def resting(self, p: ParamSharding) -> Spec:
        """The layout of parameter `p` where tokens meet it: as stored, if it is gathered for each use."""
        return param_spec(self.plan, p, "params" if self.in_use else "used")

    def gathered(self, p: ParamSharding) -> tuple[int, tuple[str, ...]]:
        """The index of the dimension that parameter `p` is gathered on, and the axes; (0, ()) where nothing divides
        it."""
        dim = cut(self.plan, p, "params")
        return (0, ()) if dim is None else (dim, self.emitted(p.stored["params"]))

    def repeated(self, p: ParamSharding) -> tuple[str, ...]:
        """The axes over which parameter `p` is repeated and meets different tokens, or does a different part."""
        own = {a for axes in self.resting(p) for a in axes}
        return tuple(a for a in dict.fromkeys((*self.tokens, *self.tensor)) if a not in own)

    @property
    def tokens_of_a_rank(self) -> int:
        """Number of tokens of a microbatch on one rank."""
        plan = self.plan
        ranks = plan.mesh.size(*plan.axes_of("sequence", "residual"))
        return plan.batch.microbatch_sequences * plan.batch.sequence_tokens // ranks

    def places(self, tokens: int) -> int:
        """Number of slots of each expert for `tokens` tokens of a rank, where it has a capacity."""
        model = self.plan.model
        return ceil(tokens * model.top_k * self.plan.route.factor / model.sizes["experts"])

    def most_rows(self, tokens: int) -> int:
        """Number of rows that may come to a rank's experts when each of their senders has `tokens` tokens: a token has
        a copy at each of a rank's experts at most."""
        model = self.plan.model
        return self.holders * tokens * min(model.top_k, model.sizes["experts"] // self.holders)

    @property
    def most_rows_ratio(self) -> float:
        """The rows that may come to a rank's experts, over those that come when the choice is even."""
        model = self.plan.model
        return self.holders * min(model.top_k, model.sizes["experts"] // self.holders) / model.top_k

    def emitted(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return parts(self.plan, self.plan.mesh.in_order(axes)) if self.ops else ()
