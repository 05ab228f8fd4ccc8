"""Laws of physics of a plan's cost: no op beats the machine, and more of the machine or less to do never costs more.

A plan is costed as it is and beside its neighbours: the machine with twice as much of something, twice as much to do,
state over one noun more, blocks that run again. `tests/random_plans/run.py --physics` is the campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from planc.checks import check_plan
from planc.costing import CostedPlan, cost_plan
from planc.costing.compute.flops import op_bytes, op_flops
from planc.costing.compute.gemm import fused_of
from planc.costing.compute.quantize import quantized
from planc.costing.compute.section import op_s
from planc.costing.machine.rates import peak_flops_per_s
from planc.costing.memory.activations import replays_of
from planc.diag.errors import PlanError
from planc.driver import Examined
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip, Cluster, Level, Link
from planc.ir.plan import Noun, Plan, Recompute, Store
from planc.ir.sharding import OpSharding, Sharded
from planc.ir.target import NO_TARGET, AnyTarget
from planc.lowering import backend_of
from planc.sharding.propagate import propagate

EXACT = 1 + 1e-9
"""Sums in another order differ by less."""
GIB = 2.0**30
Wire = TypeVar("Wire", Link, Level)


def broken(examined: Examined) -> list[str]:
    """The laws that a plan breaks, as `law: figures`; none where it has no cost."""
    costed = examined.costed
    if costed is None or costed.sharded.plan.cluster.chip.tables:
        return []
    target: AnyTarget = examined.report.target or NO_TARGET
    more = *more_machine(costed, target), *more_work(costed, target), *again(costed, target)
    return [*floors(costed), *less_state(costed), *more]


def floors(costed: CostedPlan) -> Iterator[str]:
    """No op is faster than its bytes over the memory's bandwidth, nor than its FLOPs over the peak of its dtype."""
    sharded, chip = costed.sharded, costed.sharded.plan.cluster.chip
    dtypes = sharded.plan.precision.multiplied, *(q.dtype for q in sharded.plan.quantize)
    peak = max(
        peak_flops_per_s(chip, d) for d in dtypes
    )  # of a dtype that the chip lacks, that of the one in its place
    for section, ops in sharded.ops.items():
        for o in ops:
            moved_s = moved_bytes(sharded, o) * chip.devices / chip.memory_bandwidth_bytes_per_s
            least_s = max(moved_s, op_flops(sharded, o) * chip.devices / peak)
            for backward in (False, o.op.has_backward and o.op.kind not in ("loss", "matmul")):
                if (seconds := op_s(sharded, o, chip, backward=backward)) * EXACT < least_s:
                    yield f"floor: {section} {o.op.name} takes {seconds:.3g} s, at least {least_s:.3g} s"


def moved_bytes(sharded: Sharded, o: OpSharding) -> float:
    """Bytes of an op's inputs and output; of products that run as one, its share by columns."""
    if o.op.kind != "matmul":
        return op_bytes(sharded, o)
    gemm, share = fused_of(sharded, o)
    narrow = quantized(sharded.plan, o.op) is not None  # a narrow copy of a weight is made once, and not by the op
    return share * gemm.elements * (1 if narrow else DTYPE_BYTES[sharded.plan.precision.compute])


def _rates(chip: Chip) -> Chip:
    return replace(chip, flops_per_s={d: 2 * rate for d, rate in chip.flops_per_s.items()})


def _stream(chip: Chip) -> Chip:
    return replace(chip, memory_bandwidth_bytes_per_s=2 * chip.memory_bandwidth_bytes_per_s)


def _on_chip(change: Callable[[Chip], Chip]) -> Callable[[Cluster], Cluster]:
    return lambda cluster: replace(cluster, chip=change(cluster.chip))


def _links(cluster: Cluster) -> Cluster:
    def wider(one: Wire) -> Wire:
        return replace(one, bandwidth_bytes_per_s=2 * one.bandwidth_bytes_per_s)

    chip, own = cluster.chip, cluster.own_graph
    chip = replace(
        chip,
        host_bandwidth_bytes_per_s=2 * chip.host_bandwidth_bytes_per_s,
        die_bandwidth_bytes_per_s=2 * chip.die_bandwidth_bytes_per_s,
    )
    own = own and replace(own, links=tuple(map(wider, own.links)))
    return replace(
        cluster, chip=chip, link=wider(cluster.link), levels=tuple(map(wider, cluster.levels)), own_graph=own
    )


MORE: dict[str, Callable[[Cluster], Cluster]] = {
    "FLOP/s": _on_chip(_rates),
    "memory bandwidth": _on_chip(_stream),
    "rates": lambda cluster: _links(_on_chip(lambda chip: _stream(_rates(chip)))(cluster)),
    "links": _links,
    "memory": _on_chip(lambda chip: replace(chip, memory_bytes=2 * chip.memory_bytes)),
}


def more_machine(costed: CostedPlan, target: AnyTarget) -> Iterator[str]:
    """Twice as much of anything is never slower."""
    plan = costed.sharded.plan
    for what, change in MORE.items():
        other = _costed(replace(plan, cluster=change(plan.cluster)), target)
        if other is not None and other.step.time_s > costed.step.time_s * EXACT:
            yield f"twice the {what}: {costed.step.time_s:.6g} s becomes {other.step.time_s:.6g} s"


def more_work(costed: CostedPlan, target: AnyTarget) -> Iterator[str]:
    """Twice the sequences or the tokens of each take at least as long, and at least as much memory.

    Not so the second microbatch of an XLA program: its compiler orders the gradients of the only one otherwise, and two
    layers of Llama 8B on v5e take 1.54 GiB with one and 1.32 GiB with two (`tests/xla/test_tpu_rules.py`).
    """
    plan = costed.sharded.plan
    batch = plan.batch
    more = {
        "batch": replace(plan, batch=replace(batch, sequences=2 * batch.sequences)),
        "tokens": replace(plan, batch=replace(batch, sequence_tokens=2 * batch.sequence_tokens)),
    }
    for what, bigger in more.items():
        other = _costed(bigger, target)
        if other is None:
            continue
        if other.step.time_s * EXACT < costed.step.time_s:
            yield f"{what} time: {costed.step.time_s:.6g} s becomes {other.step.time_s:.6g} s"
        reordered = target == "xla" and plan.microbatches == 1 < other.sharded.plan.microbatches
        if not reordered and other.memory.per_device_gib.total * EXACT < costed.memory.per_device_gib.total:
            yield f"{what} memory: {_gib(costed):.4f} GiB becomes {_gib(other):.4f}"


def less_state(costed: CostedPlan) -> Iterator[str]:
    """State stored over one noun more takes no more memory. Without a target: torch pads what it stores."""
    plan = costed.sharded.plan
    axes = tuple(a for a in plan.data_axes if plan.mesh.every[a].size > 1)
    plain = tuple(replace(s, axes=()) for s in plan.stores if s.dtype)
    nouns: tuple[Noun, ...] = ("optimizer", "grads")
    if axes and not plan.offloads and not plan.mesh.views:
        ways = [
            replace(plan, stores=(*plain, *(Store(noun=n, axes=axes, cause=plan.batch.cause) for n in nouns[:count])))
            for count in range(3)
        ]
        found = [c for way in ways if (c := _costed(way, NO_TARGET)) is not None]
        for one, other in pairwise(found):
            if _state(other) > _state(one) * EXACT:
                yield f"zero: state of {_state(one):.4f} GiB becomes {_state(other):.4f}"


def again(costed: CostedPlan, target: AnyTarget) -> Iterator[str]:
    """Blocks that run again take longer than kept ones, and at most one block's replay more memory."""
    plan = costed.sharded.plan
    kept = _costed(replace(plan, recompute=Recompute()), target)
    run = _costed(replace(plan, recompute=Recompute(ops=("blocks",))), target)
    if kept is None or run is None or plan.offloads:  # a block that runs again has less to bring back from the host
        return
    if run.step.time_s * EXACT < kept.step.time_s:
        yield f"recompute time: {kept.step.time_s:.6g} s becomes {run.step.time_s:.6g} s"
    block = max(replays_of(run.sharded).blocks.values(), default=0.0) / GIB
    if _tensors(run) > (_tensors(kept) + block) * EXACT:
        yield f"recompute memory: {_tensors(kept):.4f} and {block:.4f} GiB become {_tensors(run):.4f}"


def _gib(costed: CostedPlan) -> float:
    return costed.memory.per_device_gib.total


def _tensors(costed: CostedPlan) -> float:
    return costed.memory.per_device_gib.tensors


def _state(costed: CostedPlan) -> float:
    return max(
        s.per_device_gib.params + s.per_device_gib.grads + s.per_device_gib.optimizer for s in costed.memory.stages
    )


def _costed(plan: Plan, target: AnyTarget) -> CostedPlan | None:
    """The cost as `planc check` has it; None where a rule or the target refuses the plan."""
    try:
        checked = check_plan(plan)
        whole = checked if target == NO_TARGET and plan.realise else checked.for_planc
        return cost_plan(propagate(whole), backend=backend_of(None if target == NO_TARGET else target))
    except PlanError:
        return None
