"""The mesh axes that shard the experts of a plan, for both targets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planc.ir.model import EXPERTS, ROUTED, SLOTS
from planc.ir.plan import Plan
from planc.ir.sharding import OpSharding, ParamSharding, Sharded


@dataclass(frozen=True)
class ExpertAxes:
    """The mesh axes of a plan by their role for the experts, without axes of size 1."""

    sharded: Sharded

    @property
    def plan(self) -> Plan:
        """The plan in `sharded`."""
        return self.sharded.plan

    @cached_property
    def ops(self) -> tuple[OpSharding, ...]:
        """The ops of the model's graph that are part of the experts; () without experts."""
        return tuple(o for o in self.sharded.op.values() if o.op.region == EXPERTS)

    @cached_property
    def params(self) -> tuple[ParamSharding, ...]:
        """The parameters of the experts."""
        return tuple(p for p in self.sharded.params if p.param.region == EXPERTS)

    @cached_property
    def exchange(self) -> tuple[str, ...]:
        """The expert-parallel axes: tokens are exchanged over them."""
        return self.emitted(self.plan.axes_of("experts", EXPERTS))

    @cached_property
    def tensor(self) -> tuple[str, ...]:
        """The tensor-parallel axes within each expert."""
        return self.emitted(self.plan.axes_of("expert_ffn", EXPERTS))

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The axes that shard the tokens sent to the experts."""
        return self.emitted(self.plan.axes_of(SLOTS, ROUTED))

    @property
    def gathers(self) -> bool:
        """True if the tensor-parallel ranks of an expert receive different tokens, which they then all-gather."""
        return bool(self.tensor) and set(self.tensor) <= set(self.tokens)

    @property
    def capacity(self) -> bool:
        """True if each expert takes a fixed number of tokens and drops further ones."""
        return bool(self.ops) and self.plan.route.method == "capacity"

    def emitted(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes of the emitted mesh that replace the plan's `axes`, outermost first; () without experts."""
        return axes if self.ops else ()
