"""The experts of a plan, and the axes by their role there, as both targets ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planc.ir.model import EXPERTS, ROUTED, SLOTS
from planc.ir.plan import Plan
from planc.ir.sharding import OpSharding, ParamSharding, Sharded


@dataclass(frozen=True)
class ExpertAxes:
    """The axes of a plan by their role at the experts. Axes of size 1 play none."""

    sharded: Sharded

    @property
    def plan(self) -> Plan:
        """The plan whose layouts these are."""
        return self.sharded.plan

    @cached_property
    def ops(self) -> tuple[OpSharding, ...]:
        """The ops that experts do; () without experts."""
        return tuple(o for o in self.sharded.op.values() if o.op.region == EXPERTS)

    @cached_property
    def params(self) -> tuple[ParamSharding, ...]:
        """Parameters of experts."""
        return tuple(p for p in self.sharded.params if p.param.region == EXPERTS)

    @cached_property
    def exchange(self) -> tuple[str, ...]:
        """The axes that divide the experts: tokens travel over them."""
        return self.emitted(self.plan.axes_of("experts", EXPERTS))

    @cached_property
    def tensor(self) -> tuple[str, ...]:
        """The axes that divide each expert's width."""
        return self.emitted(self.plan.axes_of("expert_ffn", EXPERTS))

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The axes that divide the tokens on their way to the experts."""
        return self.emitted(self.plan.axes_of(SLOTS, ROUTED))

    @property
    def gathers(self) -> bool:
        """True if the ranks that share an expert hold different tokens, which they gather."""
        return bool(self.tensor) and set(self.tensor) <= set(self.tokens)

    @property
    def capacity(self) -> bool:
        """True if experts take a fixed number of tokens each, and drop the rest."""
        return bool(self.ops) and self.plan.route.method == "capacity"

    def emitted(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes of the emitted mesh that make up `axes` of the plan, outermost first; () without experts."""
        return axes if self.ops else ()
