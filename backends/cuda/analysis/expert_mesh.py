"""Finds the mesh axes by their role for the experts, and the device mesh that a program builds for the experts.

It has dimensions for the all-to-all of tokens, the sharding of an expert's width, FSDP and replicas. Its ranks are
those of the plan's mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from planc.backends.common.expert_axes import ExpertAxes
from planc.ir.mesh import Mesh
from planc.ir.model import EXPERTS, ROUTED, Op
from planc.ir.plan import NOUNS, Noun, Plan
from planc.ir.sharding import Sharded

WHOLE = "whole"
"""Name of a mesh dimension of size 1, for fully_shard if no axis shards the state (or that of the experts)."""


@dataclass(frozen=True)
class Dimension:
    """One dimension of an emitted device mesh: the plan's axes of one role; () for the dimension `whole`, of size 1."""

    name: str
    size: int
    axes: tuple[str, ...]

    @classmethod
    def of(cls, mesh: Mesh, axes: tuple[str, ...]) -> Dimension:
        """Returns the dimension over `axes` of `mesh`, which must be in order, outermost first.

        torch numbers the ranks of a group in ascending order, and collectives place data by these numbers. A rank's
        number is its coordinate along the dimension only if outermost axes are first.
        """
        assert axes == mesh.in_order(axes), f"{axes} are not outermost first"
        return Dimension("_".join(axes), mesh.size(*axes), axes)


class Outside(Protocol):
    """The axes by role outside the experts: what this module uses of `planc.backends.cuda.analysis.roles.AxisRoles`."""

    @property
    def plan(self) -> Plan: ...
    @property
    def sharded(self) -> Sharded: ...
    @property
    def shard(self) -> tuple[str, ...]: ...
    @property
    def replicate(self) -> tuple[str, ...]: ...
    @property
    def uses_fsdp(self) -> bool: ...
    @property
    def factors(self) -> Sequence[Dimension]: ...


@dataclass(frozen=True)
class TorchExpertAxes(ExpertAxes):
    """The mesh axes of a plan by their role for the experts, in a torch program."""

    roles: Outside

    @property
    def module(self) -> str:
        """Path, relative to a block, of the module that holds all experts."""
        path: list[str] = []
        for parts in zip(*(o.op.module.removeprefix("layers.*.").split(".") for o in self.ops), strict=False):
            if len(set(parts)) > 1:
                break
            path.append(parts[0])
        return ".".join(path)

    @cached_property
    def shard(self) -> tuple[str, ...]:
        """The axes over which FSDP shards the experts' optimizer state."""
        return self.stored("optimizer")

    def stored(self, noun: Noun) -> tuple[str, ...]:
        """Returns the axes that shard the experts' params, grads or optimizer state (`noun`); () without experts."""
        return self.params[0].stored[noun] if self.params else ()

    @cached_property
    def replicate(self) -> tuple[str, ...]:
        """The axes over which the experts' gradients are all-reduced: they shard the tokens, but not the state."""
        partial = self.params[0].grad_partial if self.params else ()
        return self.plan.mesh.in_order(set(partial) - set(self.shard))

    @property
    def styled(self) -> bool:
        """True if tokens are dispatched to the experts by all-to-all, by all-gather, or into capacity slots."""
        return bool(self.exchange or self.tensor or self.capacity)

    @cached_property
    def apart(self) -> bool:
        """True if the experts form a separate FSDP group, apart from the other parameters of their block."""
        roles = self.roles
        same = (self.shard, self.replicate) == (roles.shard, roles.replicate)
        return bool(self.params) and (bool(self.exchange or self.tensor) or not same)

    @cached_property
    def factors(self) -> tuple[Dimension, ...]:
        """The dimensions of the experts' device mesh, in order; () if experts share their block's FSDP group."""
        if not self.apart:
            return ()
        used = {*self.replicate, *self.shard, *self.exchange, *self.tensor}
        rest = [(a,) for a in self.axes if a not in used]
        stored = self.shard or ((WHOLE,) if self.roles.uses_fsdp else ())
        groups = [*rest, self.replicate, stored, self.exchange, self.tensor]
        return tuple(self._factor(group) for group in groups if group)

    @cached_property
    def own_mesh(self) -> bool:
        """True if the experts need a device mesh with other dimensions than those of the plan's mesh."""
        return self.apart and [(f.name, f.size) for f in self.factors] != [(f.name, f.size) for f in self.roles.factors]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of size above 1 that exist for the experts, outermost first: where the plan has a `view` (another
        factorization of mesh axes, for the experts), the view's axes."""
        plan = self.plan
        return plan.mesh.in_order(a for a in plan.mesh.every if plan.exists(a, EXPERTS))

    @property
    def stored_dims(self) -> tuple[str, ...]:
        """Names of the mesh dimensions that fully_shard uses for the experts."""
        return tuple(self.name(g) for g in (self.replicate, self.shard or (WHOLE,)) if g)

    @property
    def divided_dims(self) -> tuple[str, ...]:
        """Names of the mesh dimensions that shard the experts in the forward: expert parallel and tensor parallel."""
        return tuple(self.name(g) for g in (self.exchange, self.tensor) if g)

    def name(self, axes: tuple[str, ...]) -> str:
        """Returns the name of the mesh dimension of `axes`."""
        return "_".join(axes)

    def _factor(self, axes: tuple[str, ...]) -> Dimension:
        if axes == (WHOLE,):
            return Dimension(WHOLE, 1, ())
        return Dimension.of(self.plan.mesh, axes)


def routed(op: Op) -> bool:
    """True if `op` works on tokens sorted by expert, or dispatches or combines them."""
    return op.region in (EXPERTS, ROUTED)


def stored_otherwise(experts: TorchExpertAxes) -> list[Noun]:
    """Returns the kinds of state (params, grads, optimizer) that are sharded only for the `experts`, or only for all
    other parameters."""
    if not experts.shard:
        return []
    return [n for n in NOUNS if bool(experts.roles.plan.store(n)) != bool(experts.stored(n))]
