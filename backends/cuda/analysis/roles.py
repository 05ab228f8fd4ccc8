"""Maps the mesh axes of a plan to the mesh dimensions of the emitted torch program.

torch wants one mesh dimension per role: one to shard parameters over, one to replicate them over, one for tensor
parallelism. Axes of the plan with the same role are merged into one dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from planc.backends.cuda.analysis.expert_mesh import WHOLE, Dimension, TorchExpertAxes, routed
from planc.backends.cuda.torch_versions import PINNED
from planc.ir.model import Op
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.ir.version import Version

Role = Literal["rest", "pipeline", "replicate", "shard", "tensor"]
"""A role of axes in torch's mesh. `rest` is for axes over which everything but the experts is replicated."""


@dataclass(frozen=True)
class Factor(Dimension):
    """One dimension of the mesh that the emitted file builds: the plan's axes with one `role`."""

    role: Role


@dataclass(frozen=True)
class AxisRoles:
    """The axes of a plan by role. Axes of size 1 have no role."""

    sharded: Sharded
    torch: Version = PINNED
    """The torch version that the program is emitted for."""

    @property
    def plan(self) -> Plan:
        return self.sharded.plan

    @cached_property
    def shard(self) -> tuple[str, ...]:
        """The axes that FSDP shards optimizer state over. Gradients and parameters are sharded over the same axes, or
        not sharded at all."""
        return self.plan.store("optimizer")

    @cached_property
    def replicate(self) -> tuple[str, ...]:
        """The axes that shard the tokens but no state: gradients are all-reduced over them."""
        divides = self.plan.mesh.in_order({*self.plan.data_axes, *self.context})
        return tuple(a for a in divides if a not in self.shard)

    @cached_property
    def context(self) -> tuple[str, ...]:
        """The context-parallel axes: those that shard the sequence dim of the loss."""
        losses = [o for ops in self.sharded.ops.values() for o in ops if o.op.kind == "loss"]
        return self.plan.mesh.in_order({a for o in losses for a in o.layout.get("sequence", ())})

    @cached_property
    def head(self) -> Op:
        """The matmul whose output is the logits of the loss after the blocks."""
        ops = [o.op for o in self.sharded.ops["last"]]
        return next(op for op in ops if op.output == ops[-1].inputs[0])

    @property
    def context_name(self) -> str:
        """Name of the mesh dimension for context parallelism."""
        return "_".join(self.context)

    @cached_property
    def pipeline(self) -> tuple[str, ...]:
        return self.plan.mesh.in_order((self.plan.split.axis,)) if self.plan.split else ()

    @cached_property
    def modules_of_both_ends(self) -> tuple[str, ...]:
        """In a pipeline, paths of the modules before the blocks that share a tied weight with the head: the first and
        the last stage each store a copy. () without a pipeline."""
        tied = {p.param.name for p in self.sharded.tied}
        ops = self.sharded.ops["first"] if self.pipeline else ()
        return tuple(dict.fromkeys(o.op.module for o in ops if tied & set(o.op.params)))

    @property
    def ends_name(self) -> str:
        """Name of the mesh dimension that consists of the first and the last pipeline rank only."""
        return f"{self.name('pipeline')}_ends"

    @cached_property
    def tensor(self) -> tuple[str, ...]:
        """The tensor-parallel axes: those that shard a dim other than the batch in an op outside the experts. Axes that
        shard state or tokens, and the pipeline's axis, are not among them."""
        ops = (o for section in self.sharded.ops.values() for o in section if not routed(o.op))
        used = {a for o in ops for d, axes in o.layout.items() if d != "batch" for a in axes}
        return self.plan.mesh.in_order(used - {*self.shard, *self.replicate, *self.pipeline})

    @cached_property
    def tensor_parts(self) -> tuple[tuple[str, ...], ...]:
        """The tensor-parallel axes in groups, one mesh per group. The axes of a group shard or redistribute the same
        ops. Where other ops use only some of a group's axes, those axes are a smaller group as well."""
        ops = (o for section in self.sharded.ops.values() for o in section if not routed(o.op))
        parts: set[frozenset[str]] = set()
        for o in ops:
            moved = {a for m in (*o.redistributions, o.settle) if m for s in m.steps for a in s.axes}
            divided = {a for d, axes in o.layout.items() if d != "batch" for a in axes}
            used = frozenset((divided | moved) & set(self.tensor))
            while crossing := {p for p in parts if p & used and not self._may_hold(p, used)}:
                parts, used = parts - crossing, used.union(*crossing)
            parts |= {used} - {frozenset()}
        ordered = (self.plan.mesh.in_order(p) for p in parts)
        return tuple(sorted(ordered, key=lambda p: (self.tensor.index(p[0]), -len(p))))

    def _may_hold(self, one: frozenset[str], other: frozenset[str]) -> bool:
        """True if one of the groups is a subset of the other and neither has a context-parallel axis."""
        return (one <= other or other <= one) and not (one | other) & set(self.context)

    def tensor_part(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Returns the smallest group (`tensor_parts`) with all tensor-parallel axes among `axes`; if there is none, all
        tensor-parallel axes."""
        named = set(axes) & set(self.tensor)
        return min((part for part in self.tensor_parts if named and named <= set(part)), key=len, default=self.tensor)

    @cached_property
    def tensor_meshes(self) -> tuple[Factor, ...]:
        """The tensor-parallel meshes: each is one dimension of the program's mesh, or several flattened into one."""
        return tuple(self._factor(part, "tensor") for part in self.tensor_parts)

    @property
    def joined(self) -> tuple[Factor, ...]:
        """The tensor-parallel meshes that flatten several dimensions of the program's mesh into one."""
        return tuple(f for f in self.tensor_meshes if f not in self.factors)

    @cached_property
    def uses_fsdp(self) -> bool:
        """True if fully_shard is used: to shard state, to average gradients over data ranks, or to cast dtypes."""
        state = self.shard or self.replicate or self.experts.shard or self.experts.replicate
        return bool(state or self.plan.precision.compute != "fp32" or self.state_dtype != "fp32")

    @cached_property
    def state_dtype(self) -> str:
        """The dtype of parameters, gradients and optimizer moments."""
        return self.plan.store_dtype("params")

    @cached_property
    def experts(self) -> TorchExpertAxes:
        """The roles of the mesh axes in the expert layers."""
        return TorchExpertAxes(self.sharded, self)

    @cached_property
    def rest(self) -> tuple[str, ...]:
        """The axes that shard nothing outside the experts."""
        roles = {*self.pipeline, *self.replicate, *self.shard, *self.tensor}
        return tuple(a.name for a in self.plan.mesh.axes if a.size > 1 and a.name not in roles)

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """The dimensions of the emitted device mesh, outermost first: rest, pipeline, replicate, shard, tensor."""
        roles: tuple[Role, ...] = ("rest", "pipeline", "replicate", "shard", "tensor")
        found = [f for role in roles for f in self._factors(role)]
        if (self.uses_fsdp and not self.shard) or not found:
            at = next((i for i, f in enumerate(found) if f.role == "tensor"), len(found))
            found.insert(at, Factor(WHOLE, 1, (), "shard"))
        return tuple(found)

    def factor(self, role: Role) -> Factor | None:
        """Returns the mesh dimension with `role`; None if the plan has none."""
        return next((f for f in self.factors if f.role == role), None)

    def name(self, role: Role) -> str:
        """Returns the name of the mesh dimension with `role`, which must exist."""
        factor = self.factor(role)
        assert factor is not None, role
        return factor.name

    @property
    def data(self) -> tuple[Factor, ...]:
        """The mesh dimensions over which ranks have different tokens."""
        return tuple(f for f in self.factors if set(f.axes) & {*self.plan.data_axes, *self.context})

    @property
    def arranged(self) -> tuple[str, ...]:
        """The axes with more than one rank, in the order of the emitted mesh's dimensions."""
        return tuple(a for f in self.factors for a in f.axes if self.plan.mesh.size(a) > 1)

    def dimension(self, axes: tuple[str, ...]) -> str:
        """Returns the name of the mesh dimension that a collective over `axes` uses."""
        if axes == self.context:
            return self.context_name
        named = [(f.axes, f.name) for f in (*self.factors, *self.joined, *self.experts.factors)]
        same = (name for known, name in named if known and self._ranks(known) == self._ranks(axes))
        return next(same, "") or next(name for known, name in named if set(axes) <= set(known))

    def _ranks(self, axes: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
        """Returns the sizes and strides of a rank group over `axes`, outermost first, with adjacent axes merged. Two
        groups of the same ranks have equal values."""
        found: list[tuple[int, int]] = []
        for axis in sorted((self.plan.mesh.axis(a) for a in axes), key=lambda a: -a.stride):
            if axis.size > 1 and found and found[-1][1] == axis.size * axis.stride:
                found[-1] = (found[-1][0] * axis.size, axis.stride)
            elif axis.size > 1:
                found.append((axis.size, axis.stride))
        return tuple(found)

    def _axes(self) -> dict[Role, tuple[str, ...]]:
        return {
            "rest": self.rest,
            "pipeline": self.pipeline,
            "replicate": self.replicate,
            "shard": self.shard,
            "tensor": self.tensor,
        }

    def _factors(self, role: Role) -> Iterator[Factor]:
        for part in self._tensor_dimensions() if role == "tensor" else (self._axes()[role],):
            if part:
                yield self._factor(part, role)

    def _tensor_dimensions(self) -> list[tuple[str, ...]]:
        """Returns the axes of each tensor-parallel dimension of the emitted mesh. Groups of axes that overlap are split
        into single axes."""
        met = {
            a for part in self.tensor_parts for other in self.tensor_parts if other != part for a in {*part} & {*other}
        }
        whole = [part for part in self.tensor_parts if not met & {*part}]
        single = [(a,) for part in self.tensor_parts if met & {*part} for a in part]
        return sorted({*whole, *single}, key=lambda axes: self.tensor.index(axes[0]))

    def _factor(self, axes: tuple[str, ...], role: Role) -> Factor:
        return Factor(**vars(Dimension.of(self.plan.mesh, axes)), role=role)
