"""FLOPs of the matmuls that a rank runs in a step, as an audit counts them in a traced or compiled program.

Kernels of attention and of grouped experts' matmuls state no FLOPs to a compiler, so those are left out where they run.
"""

from __future__ import annotations

from collections.abc import Callable

from planc.costing.compute.attention import scores_again, scores_of
from planc.costing.compute.flops import backward_of_code, head_widths, op_flops, update_products
from planc.costing.compute.shapes import Gemm
from planc.costing.step.lockstep_cost import LockstepCost
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Section
from planc.ir.sharding import OpSharding, Sharded
from planc.ir.updates import moments_of, newton_schulz_flops
from planc.sharding.recompute import replay
from planc.sharding.stage_assignment import copies_on, load_of, microbatches_each, replayed_copies

Scale = Callable[[OpSharding], float]
"""How often a program multiplies for an op what the op asks for: 0 where a kernel does, that states no FLOPs."""


@dataclass(frozen=True, slots=True)
class OpProducts:
    """FLOPs of one op's matmuls for one microbatch: in the forward, in the backward, and when it is run again."""

    forward: float
    backward: float
    again: float
    again_update: float = 0.0
    """The part of `again` that the first matmul of a low-rank update takes."""


def op_products(sharded: Sharded, o: OpSharding) -> OpProducts:
    """Return the FLOPs of the matmuls of op `o` of `sharded`; a gradient that is not needed has none.

    >>> found = op_products(sharded, ops["ffn.gate"])
    >>> found.backward == 2 * found.forward
    True
    """
    whole = op_flops(sharded, o)
    if o.op.kind == "attention":
        return _scores(sharded, o)
    if o.op.kind != "matmul":
        return OpProducts(whole, backward_of_code(o.op) * whole, whole) if o.op.kind == "code" else OpProducts(0, 0, 0)
    updates = [Gemm(*sides).flops for sides in update_products(sharded, o)]
    main, goes_on = whole - sum(updates), o.op.inputs[0] not in o.op.fixed
    backward = main * goes_on + main * any(p not in o.op.fixed for p in o.op.weights)
    backward += sum(updates) + sum(updates if goes_on else updates[1:])
    return OpProducts(whole, backward, whole, sum(updates[:1]))


def _scores(sharded: Sharded, o: OpSharding) -> OpProducts:
    """Return the FLOPs of an attention that stores its scores, masked ones included; 0 for a kernel.

    Unfused attention without a kernel of the program's own saves its probabilities too. A class's own code does what
    it was seen to keep.
    """
    kernel, asked = sharded.attention, sharded.plan.attention
    kept = any("heads" in e.dims and e.dims.count("sequence") > 1 for c in o.op.own_code for e in c.inside)
    if not (kept or (kernel.stores_scores if kernel else asked is not None and asked.runs == "unfused")):
        return OpProducts(0.0, 0.0, 0.0)
    each = 2.0 * scores_of(sharded, o) * head_widths(sharded.model, o.op)
    return OpProducts(each, (2.5 if not kept and kernel and scores_again(sharded, o) else 2.0) * each, each)


def step_flops(sharded: Sharded, rank: int, scale: Scale = lambda o: 1.0) -> float:
    """Return the FLOPs of all matmuls that pipeline rank `rank` of `sharded` runs in a step, as `scale` counts them.

    In a pipeline in lockstep every rank runs the longest stage in every tick, also without a microbatch, and its share
    of the rows in the embedding and the head.

    >>> f"{step_flops(sharded, 0) / 1e15:.1f} PFLOP"  # 20 of 80 layers, 32 microbatches
    '3.4 PFLOP'
    """
    plan = sharded.plan
    load, again, ticks, ends = load_of(plan, rank), replayed_copies(plan, rank), 1.0, 0.0
    if sharded.stack.lockstep and plan.pipeline > 1:
        cost, each = LockstepCost(plan), microbatches_each(plan) * len(plan.stages) // plan.pipeline
        load, again, ticks, ends = cost.load(rank), cost.replayed(rank), (each + plan.pipeline - 1) / each, 1.0
    total = ticks * sum(n * _section(sharded, s, scale, again[s] / n) for s, n in load.items())
    total += ends * sum(_section(sharded, s, scale, 0.0) for s in ("first", "last") if s in sharded.ops) / plan.pipeline
    return total * microbatches_each(plan) + _update_flops(sharded, load)


def _section(sharded: Sharded, section: Section, scale: Scale, again: float) -> float:
    """Return the FLOPs of one copy of `section` for one microbatch, of which the share `again` is recomputed."""
    total = 0.0
    for o in sharded.ops[section]:
        found = op_products(sharded, o)
        total += scale(o) * (found.forward + found.backward + again * _again(sharded, section, o, found))
    return total


def _again(sharded: Sharded, section: Section, o: OpSharding, found: OpProducts) -> float:
    """Return the FLOPs that the backward of one copy of `section` runs again for op `o`."""
    if section not in sharded.model.blocks:
        return 0.0
    replayed = replay(sharded.plan, section)
    return found.again * (o.op.name in replayed.ops) + found.again_update * (o.op.name in replayed.updates)


def _update_flops(sharded: Sharded, load: dict[str, int]) -> float:
    """Return the FLOPs of Muon's iteration on whole matrices (`planc.ir.updates`)."""
    plan = sharded.plan
    muon = [p.param for p in sharded.params if moments_of(plan, p.param.name) == 1]
    return sum(copies_on(plan, p, load) * newton_schulz_flops(plan.model.shape(p)) for p in muon)
