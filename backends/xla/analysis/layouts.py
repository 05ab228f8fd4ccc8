"""Partition specs: the mesh axes that shard each dim of a tensor or parameter.

XLA stores equal shards, so a parameter is sharded on a dim whose size the ranks divide. If none is divisible, the
parameter is padded, or replicated if it has fewer elements than there are ranks; the emitted file says so.
"""

from __future__ import annotations

from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Literal

from planc.backends.xla.analysis.mesh_factors import parts
from planc.ir.model import EXPERTS
from planc.ir.plan import Noun, Plan
from planc.ir.sharding import Layout, Move, OpSharding, ParamSharding, RedistributionStep, Sharded
from planc.sharding.propagate import override_of
from planc.sharding.redistribute import steps_between

if TYPE_CHECKING:
    from planc.ir.backend import StateLayout

Spec = tuple[tuple[str, ...], ...]
"""Per tensor dim, the axes of the emitted mesh that shard it, outermost first; () for a replicated dim."""

Use = Literal["params", "grads", "optimizer", "used"]


def param_spec(plan: Plan, p: ParamSharding, use: Use) -> Spec:
    """Return the PartitionSpec of one layer of parameter `p`. `use` is "used" for the layout in a matmul, or "params",
    "grads" or "optimizer" for the layout in storage."""
    used = tuple(parts(plan, plan.mesh.in_order(axes)) for axes in p.compute)
    if use == "used":
        return used
    further = parts(plan, plan.mesh.in_order(p.stored[use]))
    index = cut(plan, p, use)
    if index is None:
        return used
    return (*used[:index], (*used[index], *further), *used[index + 1 :])


def state_layout(sharded: Sharded) -> StateLayout:
    """Return a function of a parameter and a noun (params, grads or optimizer) that returns the layout of this state:
    the axes that shard it in storage, and the index of the sharded dim (None if no dim is)."""
    return lambda p, noun: (p.stored[noun], cut(sharded.plan, p, noun))


def cut(plan: Plan, p: ParamSharding, noun: Noun) -> int | None:
    """Return the index of the dim of `p` on which `noun` is sharded in storage; None if there is no such dim.

    The first divisible dim is taken of: the dim that the plan names, the largest dim that tensor parallelism does not
    shard, the largest dim. If none is divisible, the parameter is padded on the dim that needs the least padding, of
    those that tensor parallelism does not shard and that have an element per rank. Experts are never padded.
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
    """Return the index of the dim that `ranks` ranks shard in storage; None if no dim is divisible.

    `local` are the elements of each dim after tensor parallelism, `divided` is True for a dim that tensor parallelism
    shards, and `named` is the dim that the plan names.
    """
    able = [i for i, n in enumerate(local) if n % ranks == 0]
    if ranks == 1 or not able:
        return None
    if named in able:
        return named
    return max(able, key=lambda i: (not divided[i], local[i], -i))


def uncut(plan: Plan, p: ParamSharding, noun: Noun) -> bool:
    """True if `plan` shards `noun` (params, grads or optimizer), but no dim of parameter `p` is divisible."""
    return plan.mesh.size(*p.stored[noun]) > 1 and cut(plan, p, noun) is None


def activation_spec(sharded: Sharded, tensor: str) -> Spec:
    """Return the partition spec between ops of the activation named `tensor`, one entry per dim."""
    t = sharded.model.tensor[tensor]
    return spec_of(sharded.plan, t.dims, sharded.declared(tensor))


def spec_of(plan: Plan, dims: tuple[str, ...], layout: Layout) -> Spec:
    """Return `layout` as a spec of a tensor with named `dims`, one entry per dim; axes of size 1 are left out."""
    laid = in_whole_heads(plan, dims, layout)
    return tuple(parts(plan, outermost_first(plan, d, laid.get(d, ()))) for d in dims)


def in_whole_heads(plan: Plan, dims: tuple[str, ...], layout: Layout) -> Layout:
    """Return `layout` of a tensor with named `dims` with the axes of `head_dim` at the heads, while a rank has several.

    A projection's weight has both in one dim, heads outermost, and XLA shards it in contiguous blocks: a block is some
    heads. A rank with a part of each head would need an all-to-all before the heads, and one after them.
    """
    within = layout.get("head_dim", ())
    if not within:
        return layout
    heads = dims[dims.index("head_dim") - 1]
    held, rest = layout.get(heads, ()), tuple[str, ...]()
    for axis in within:
        if plan.model.sizes[heads] > plan.mesh.size(*held):
            held = (*held, axis)
        else:
            rest = (*rest, axis)
    return {**layout, heads: held, "head_dim": rest}


def steps_of(sharded: Sharded, move: Move) -> tuple[RedistributionStep, ...]:
    """Return the steps of `move` in the program of `sharded`, which shards whole heads: see `in_whole_heads`."""
    dims = sharded.model.tensor[move.tensor].dims
    before, after = (in_whole_heads(sharded.plan, dims, layout) for layout in (move.before, move.after))
    return steps_between(before, move.partial, after) if (before, after) != (move.before, move.after) else move.steps


def outermost_first(plan: Plan, dim: str, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the `axes` that shard `dim`, a dim of an activation of `plan`, outermost first.

    Axes that shard `dim` only in a region (a part of the model with a layout of its own, such as the experts) come
    last, as in the weights: a rank slices on entering the region, and gathers on leaving. Batch axes keep mesh order.
    """
    ordered = plan.mesh.in_order(axes)
    if dim == "batch":
        return ordered
    return tuple(sorted(ordered, key=lambda axis: axis not in plan.axes_of(dim)))


def repeated_over(o: OpSharding) -> tuple[str, ...]:
    """Return the axes whose ranks all compute the whole op `o`, although some input or output of `o` is sharded over
    them."""
    own = {a for axes in o.layout.values() for a in axes}
    moves = (move for move in (*o.redistributions, o.settle) if move is not None)
    return tuple(dict.fromkeys(a for move in moves for step in move.steps for a in step.axes if a not in own))


def batch_spec(plan: Plan) -> Spec:
    """Return the spec of tokens and targets [sequences, sequence_tokens]: the axes that shard the batch of `plan`."""
    return (parts(plan, plan.mesh.in_order(plan.data_axes)), ())


def casts(plan: Plan) -> bool:
    """True if matmuls of `plan` run in another dtype than the parameters have."""
    return plan.precision.compute != "fp32"


def own_gradient(plan: Plan) -> bool:
    """True if the emitted `linear` of `plan` has its own backward, which gathers again or sums in another dtype."""
    return casts(plan) or plan.gathers_each_pass()


def laid_out_at_once(sharded: Sharded) -> set[tuple[str, str]]:
    """Return the section (part of the model) and the name of each weight of `sharded` whose gradient `linear`
    constrains to the stored layout as soon as the gradient is computed."""
    if not own_gradient(sharded.plan):
        return set()
    first = {p.param.name for p in summed_first(sharded)}
    uses = ((s, o.op) for s, ops in sharded.ops.items() for o in ops if o.op.kind == "matmul")
    return {(section, p) for section, op in uses for p in op.params if p not in first}


def summed_first(sharded: Sharded) -> list[ParamSharding]:
    """Return the matmul weights in `sharded`, without experts, whose gradient `linear` constrains first to the weight's
    layout in the matmul and then to the stored layout. These weights have a layout of their own in the plan, or several
    ranks compute the whole gradient, which XLA would otherwise divide over these ranks and permute."""
    plan = sharded.plan
    idle = set(plan.mesh.in_order(plan.mesh.sizes)) - {plan.split.axis if plan.split else ""}
    ops = [o for o in chain.from_iterable(sharded.ops.values()) if o.op.kind == "matmul" and o.op.region != EXPERTS]
    repeated = [o for o in ops if not idle.issubset(a for axes in o.layout.values() for a in axes)]
    used, whole = ({p for o in found for p in o.op.params} for found in (ops, repeated))
    alone = {p.param.name for p in sharded.params if override_of(plan, p.param) is not None}
    found = [p for p in sharded.params if p.param.name in used & (alone | whole)]
    return [p for p in found if param_spec(plan, p, "used") != param_spec(plan, p, "grads")]


def rounds_before_gathers(plan: Plan) -> bool:
    """True if the emitted `linear` of `plan` keeps XLA from gathering a weight before the cast.

    Groups of recomputed layers wait for their input, and so does the cast of their weights. The TPU compiler would then
    gather the weights in fp32, twice as many bytes as in bf16, and cast the result.
    """
    return plan.cluster.has_tpus and plan.recompute.every > 1 and casts(plan) and plan.gathers_each_pass()
