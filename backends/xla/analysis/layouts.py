"""Layouts as partition specs: which mesh axes divide each dimension of a tensor or parameter.

XLA stores equal parts, so a parameter is cut on a dimension that divides; where none does it is filled up, or stays
whole where it has fewer elements than there are ranks, and the emitted file says so.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Literal

from planc.backends.xla.analysis.mesh_factors import parts
from planc.ir.model import EXPERTS
from planc.ir.plan import Noun, Plan
from planc.ir.sharding import Layout, OpSharding, ParamSharding, Sharded

if TYPE_CHECKING:
    from planc.ir.backend import StateLayout

Spec = tuple[tuple[str, ...], ...]
"""Per dimension, the axes of the emitted mesh that divide it, outermost first; () for a whole one."""

Use = Literal["params", "grads", "optimizer", "used"]


def param_spec(plan: Plan, p: ParamSharding, use: Use) -> Spec:
    """The PartitionSpec of one layer of parameter `p`: while it is used, or of a stored parameter, gradient or
    optimizer state.

    `use` is "used", or the noun.
    """
    used = tuple(parts(plan, plan.mesh.in_order(axes)) for axes in p.compute)
    if use == "used":
        return used
    further = parts(plan, plan.mesh.in_order(p.stored[use]))
    index = cut(plan, p, use)
    if index is None:
        return used
    return (*used[:index], (*used[index], *further), *used[index + 1 :])


def state_layout(sharded: Sharded) -> StateLayout:
    """The layout of state in the program of `sharded`: each noun over its own axes, on the dimension that `cut`
    finds."""
    return lambda p, noun: (p.stored[noun], cut(sharded.plan, p, noun))


def cut(plan: Plan, p: ParamSharding, noun: Noun) -> int | None:
    """Index of the storage dimension of `p` that `noun` is divided on; None if it is not, or cannot be.

    The one the plan names; else the largest dimension left by tensor parallelism, in local elements; else the largest
    that it divides too. Where none falls into equal parts it is the one that is filled up least, of those with an
    element for each rank that no tensor axis divides; experts are not filled up.
    """
    ranks = plan.mesh.size(*p.stored[noun])
    local = [ceil(n / plan.mesh.size(*axes)) for n, axes in zip(plan.model.shape(p.param), p.compute, strict=True)]
    divided = [bool(plan.mesh.in_order(axes)) for axes in p.compute]
    found = largest_cut(local, divided, ranks, p.on_dim)
    if found is not None or ranks == 1 or p.param.region == EXPERTS:
        return found
    able = [i for i, n in enumerate(local) if n >= ranks and not divided[i]]
    return min(able, key=lambda i: (-local[i] % ranks / local[i], i != p.on_dim, -local[i]), default=None)


def largest_cut(local: list[int], divided: list[bool], ranks: int, named: int | None = None) -> int | None:
    """Index of the dimension that `ranks` ranks divide in storage; None where no dimension can be.

    `local` are the elements left on each dimension by tensor parallelism, `divided` says where it divides, and `named`
    is the dimension that the plan names.
    """
    able = [i for i, n in enumerate(local) if n % ranks == 0]
    if ranks == 1 or not able:
        return None
    if named in able:
        return named
    return max(able, key=lambda i: (not divided[i], local[i], -i))


def uncut(plan: Plan, p: ParamSharding, noun: Noun) -> bool:
    """True if `plan` shards `noun` and no dimension of parameter `p` divides."""
    return plan.mesh.size(*p.stored[noun]) > 1 and cut(plan, p, noun) is None


def activation_spec(sharded: Sharded, tensor: str) -> Spec:
    """The layout of an activation between ops, one entry for each dimension of `tensor`, a tensor's name."""
    t = sharded.model.tensor[tensor]
    return spec_of(sharded.plan, t.dims, sharded.declared(tensor))


def spec_of(plan: Plan, dims: tuple[str, ...], layout: Layout) -> Spec:
    """The layout of a tensor with named `dims` as a spec, one entry a dim; axes of one device are left out."""
    return tuple(parts(plan, outermost_first(plan, d, layout.get(d, ()))) for d in dims)


def outermost_first(plan: Plan, dim: str, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The `axes` of `dim`, a dim of an activation of `plan`, in the order in which they cut it.

    Those of one region come after those that divide the dim everywhere, as its weights do: what enters and leaves a
    region cuts and joins parts of what is divided already. Rows of batches lie in the order of the mesh.
    """
    ordered = plan.mesh.in_order(axes)
    if dim == "batch":
        return ordered
    return tuple(sorted(ordered, key=lambda axis: axis not in plan.axes_of(dim)))


def repeated_over(o: OpSharding) -> tuple[str, ...]:
    """The axes whose ranks each do all of the op `o`, though what it reads or makes rests divided over them."""
    own = {a for axes in o.layout.values() for a in axes}
    moves = (move for move in (*o.redistributions, o.settle) if move is not None)
    return tuple(dict.fromkeys(a for move in moves for step in move.steps for a in step.axes if a not in own))


def batch_spec(plan: Plan) -> Spec:
    """The spec of tokens and targets, [sequences, sequence_tokens]: the axes that divide the batch of `plan`."""
    return (parts(plan, plan.mesh.in_order(plan.data_axes)), ())


def casts(plan: Plan) -> bool:
    """True if matmuls of `plan` run in another dtype than parameters are kept in."""
    return plan.precision.compute != "fp32"


def own_gradient(plan: Plan) -> bool:
    """True if `linear` of the program of `plan` states its own backward: to gather again, or to reduce in another
    dtype."""
    return casts(plan) or plan.gathers_each_pass()


def rounds_before_gathers(plan: Plan) -> bool:
    """True if `linear` of the program of `plan` keeps XLA from gathering a weight before it is rounded.

    Layers that are run again by groups wait for their input, and with them the cast of their weights: the TPU compiler
    then casts what a gather by sums has brought, fp32 twice as wide as bf16.
    """
    return plan.cluster.has_tpus and plan.recompute.every > 1 and casts(plan) and plan.gathers_each_pass()
