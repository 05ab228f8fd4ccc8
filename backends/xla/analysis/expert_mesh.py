"""Roles of the mesh axes at the experts, as axes of the emitted mesh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from planc.backends.common.expert_axes import ExpertAxes
from planc.backends.xla.analysis.layouts import Spec, cut, param_spec
from planc.backends.xla.analysis.mesh_factors import atoms, parts
from planc.ir.base import Cause
from planc.ir.model import EXPERTS, Op
from planc.ir.sharding import ParamSharding

SUBLANES = 16
"""Rows of a TPU's vector register in bf16."""


@dataclass(frozen=True)
class XlaExpertAxes(ExpertAxes):
    """The mesh axes by their role in expert parallelism, as axes of the emitted mesh (factors of the plan's axes)."""

    @cached_property
    def combine(self) -> Op:
        """The op that returns the outputs of the experts to their tokens."""
        return next(o.op for o in self.sharded.op.values() if o.op.kind == "combine")

    @cached_property
    def sequence(self) -> tuple[str, ...]:
        """The axes that shard the sequence dim of the tokens."""
        return self.emitted(self.plan.axes_of("sequence", "residual"))

    @cached_property
    def dividing(self) -> tuple[str, ...]:
        """Return all axes that shard the tokens, the sequence or the experts' weights inside `experts`."""
        resting = (a for p in self.params for axes in self.resting(p) for a in axes)
        return tuple(dict.fromkeys((*self.tokens, *self.tensor, *self.exchange, *self.sequence, *resting)))

    @property
    def holders(self) -> int:
        """Return the number of ranks over which the experts dim is sharded."""
        return self.plan.mesh.size(*self.plan.axes_of("experts", EXPERTS))

    @property
    def alone(self) -> bool:
        """True if each rank holds one expert."""
        return self.holders == self.plan.model.sizes["experts"]

    @property
    def ragged(self) -> bool:
        """True if a ragged all-to-all exchanges the tokens, which sends exactly the rows in use. XLA supports ragged
        all-to-alls on accelerators, but not on CPUs."""
        cluster = self.plan.cluster
        return not self.capacity and (cluster.has_tpus or not cluster.chip.hosts_itself)

    @cached_property
    def has_kernel(self) -> bool:
        """True if a kernel multiplies for the gradients of dropless experts' weights: on TPUs, whose compiler would
        multiply all rows by every local expert, if the rows fill whole registers, and every axis divides rows or
        weights: the kernel is code of one rank."""
        plan = self.plan
        rows = self.most_rows(self.tokens_of_a_rank) if self.ops else 0
        staged = plan.split.axis if plan.split else ""
        others = {a.name for a in atoms(plan) if a.size > 1} - {staged, *self.dividing} if rows else set()
        return bool(rows) and not self.capacity and plan.cluster.has_tpus and rows % SUBLANES == 0 and not others

    @property
    def in_use(self) -> bool:
        """True if experts' weights are all-gathered at each use, in every forward and backward."""
        return self.plan.gathers_each_pass(EXPERTS)

    @property
    def cause(self) -> Cause | None:
        """The sentence that routes tokens to experts or shards the experts; None if the plan has none."""
        plan = self.plan
        view = plan.view_of(EXPERTS)
        divided = plan.axes_of("experts", EXPERTS)
        found = plan.cause_of_shard("experts", divided[0], EXPERTS) if divided else None
        return plan.route.cause or found or (view.cause if view else None)

    def resting(self, p: ParamSharding) -> Spec:
        """Return the spec in which `experts` receives `p`: of storage if each use gathers weights, else of use."""
        return param_spec(self.plan, p, "params" if self.in_use else "used")

    def gathered(self, p: ParamSharding) -> tuple[int, tuple[str, ...]]:
        """Return the index of the dim on which parameter `p` is all-gathered, and the axes of the gather; (0, ()) if
        `p` is not stored sharded."""
        dim = cut(self.plan, p, "params")
        return (0, ()) if dim is None else (dim, self.emitted(p.stored["params"]))

    def repeated(self, p: ParamSharding) -> tuple[str, ...]:
        """Return the axes that replicate parameter `p`, but shard the tokens or the experts' matmuls: the gradient of
        `p` is summed over these axes."""
        own = {a for axes in self.resting(p) for a in axes}
        return tuple(a for a in dict.fromkeys((*self.tokens, *self.tensor)) if a not in own)

    @property
    def tokens_of_a_rank(self) -> int:
        """Number of tokens of a microbatch on one rank."""
        plan = self.plan
        ranks = plan.mesh.size(*plan.axes_of("sequence", "residual"))
        return plan.batch.microbatch_sequences * plan.batch.sequence_tokens // ranks

    def places(self, tokens: int) -> int:
        """Return the capacity of each expert, in slots, for the `tokens` tokens of one rank."""
        model = self.plan.model
        return ceil(tokens * model.top_k * self.plan.route.factor / model.sizes["experts"])

    def most_rows(self, tokens: int) -> int:
        """Return the largest number of rows that the experts of one rank can receive if each sender has `tokens`
        tokens. A token sends at most one copy to each expert."""
        model = self.plan.model
        return self.holders * tokens * min(model.top_k, model.sizes["experts"] // self.holders)

    @property
    def most_rows_ratio(self) -> float:
        """Return the most rows that the experts of one rank can receive, divided by their rows in balanced routing."""
        model = self.plan.model
        return self.holders * min(model.top_k, model.sizes["experts"] // self.holders) / model.top_k

    def emitted(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return parts(self.plan, self.plan.mesh.in_order(axes)) if self.ops else ()
