"""What each mesh axis is for, in torch's terms, and the mesh that the emitted file builds.

torch wants one mesh dimension per role: parameters are sharded over one, replicated over one, and
tensor parallelism takes one. Axes of the plan that share a role are merged into one dimension.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from planc.ir.plan import NOUNS, Period, Plan
from planc.ir.sharding import Sharded

Role = Literal["pipeline", "replicate", "shard", "tensor"]

WHOLE = "whole"
"""A dimension of size 1: fully_shard divides over it (that is, not at all) when no axis stores state."""


@dataclass(frozen=True)
class Factor:
    """One dimension of the emitted mesh: the plan's axes with one role, outermost first."""

    name: str
    size: int
    axes: tuple[str, ...]
    role: Role


@dataclass(frozen=True)
class Roles:
    """The axes of a plan by role. Axes of size 1 play none."""

    sharded: Sharded

    @property
    def plan(self) -> Plan:
        return self.sharded.plan

    @cached_property
    def shard(self) -> tuple[str, ...]:
        """The axes that optimizer state, and perhaps more, is stored over."""
        return self.plan.store("optimizer")

    @cached_property
    def replicate(self) -> tuple[str, ...]:
        """The axes that divide the batch but store nothing: gradients are all-reduced over them."""
        return tuple(a for a in self.plan.data_axes if a not in self.shard)

    @cached_property
    def pipeline(self) -> tuple[str, ...]:
        return self.plan.mesh.in_order((self.plan.split.axis,)) if self.plan.split else ()

    @cached_property
    def tensor(self) -> tuple[str, ...]:
        """The axes that divide an op's index space in another dim than the batch."""
        ops = (o for section in self.sharded.ops.values() for o in section)
        used = {a for o in ops for d, axes in o.layout.items() if d != "batch" for a in axes}
        return self.plan.mesh.in_order(used - {*self.shard, *self.plan.data_axes, *self.pipeline})

    @cached_property
    def uses_fsdp(self) -> bool:
        """fully_shard keeps the state, averages over data ranks, and casts for mixed precision."""
        return bool(self.shard or self.replicate or self.plan.precision.compute != "fp32")

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """The emitted mesh's dimensions, outermost first."""
        found = [f for role in ("pipeline", "replicate", "shard", "tensor") if (f := self._factor(role))]
        found.sort(key=lambda f: -self.plan.mesh.axes[self._place(f.axes[0])].stride)
        if (self.uses_fsdp and not self.shard) or not found:
            at = next((i for i, f in enumerate(found) if f.role == "tensor"), len(found))
            found.insert(at, Factor(WHOLE, 1, (), "shard"))
        return tuple(found)

    def factor(self, role: Role) -> Factor | None:
        return next((f for f in self.factors if f.role == role), None)

    def name(self, role: Role) -> str:
        """The mesh dimension of a role that is known to be there."""
        factor = self.factor(role)
        assert factor is not None, role
        return factor.name

    @property
    def data(self) -> tuple[Factor, ...]:
        """The dimensions that divide the batch, outermost first."""
        return tuple(f for f in self.factors if set(f.axes) & set(self.plan.data_axes))

    def apart(self) -> tuple[tuple[str, ...], ...]:
        """The roles whose axes are not neighbours in the mesh, so that they cannot be merged."""
        return tuple(axes for axes in self._axes().values() if not self._neighbours(axes))

    def _axes(self) -> dict[Role, tuple[str, ...]]:
        return {
            "pipeline": self.pipeline,
            "replicate": self.replicate,
            "shard": self.shard,
            "tensor": self.tensor,
        }

    def _factor(self, role: Role) -> Factor | None:
        axes = self._axes()[role]
        return Factor("_".join(axes), self.plan.mesh.size(*axes), axes, role) if axes else None

    def _place(self, axis: str) -> int:
        return next(i for i, a in enumerate(self.plan.mesh.axes) if a.name == axis)

    def _neighbours(self, axes: Iterable[str]) -> bool:
        """Whether no axis of size above 1 lies between these."""
        real = [a.name for a in self.plan.mesh.axes if a.size > 1]
        places = sorted(real.index(a) for a in axes)
        return all(b - a == 1 for a, b in pairwise(places))


@dataclass(frozen=True)
class Keeping:
    """How fully_shard is to keep state between uses, from the nouns that are stored."""

    gather_per: Period
    scatter_each_microbatch: bool

    @classmethod
    def of(cls, plan: Plan) -> Keeping:
        stored = {noun: bool(plan.store(noun)) for noun in NOUNS}
        return cls(
            gather_per=plan.gather_per if stored["params"] else "step",
            scatter_each_microbatch=stored["grads"],
        )
