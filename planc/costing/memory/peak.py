"""Peak memory of one device in bytes, by part and pipeline stage.

State: master parameters, gradients and two AdamW moments, sharded as the plan says, and the compute copy of gathered
parameters. Activations: the tensors that the backward needs of each microbatch in flight. Temporary memory peaks either
in the backward of the loss, or in that of the last block, after the logits are freed. Where a step begins without any
gradient, it can also peak in that of the first block, when all exist; and in the update, without activations, if this
copies gradients or allocates tensors for all parameters.

The reserve is memory outside the program's tensors: the runtime, and fragmentation of the allocator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from planc.costing.memory.activations import Replays, replay_buffers, replays_of, saved_by_section
from planc.costing.memory.state import (
    bucket_bytes,
    communicators,
    resting,
    root_bytes,
    state_buffers,
    temporaries,
    update_bytes,
)
from planc.ir.backend import Backend
from planc.ir.collective import Collective
from planc.ir.hardware import Chip
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.report import Memory, MemoryParts, Reserved, StageMemory
from planc.ir.sharding import Sharded
from planc.ir.stack import Stack
from planc.ir.tensor_bytes import TensorBytes, during
from planc.pipeline.timeline import Timeline
from planc.sharding.stage_assignment import copies_on, sections_of, sections_on

GIB = 2.0**30
TENSORS = ("params", "grads", "optimizer", "activations", "buffers")
"""The parts of a report's memory that are tensors of the program."""
UPDATE = "update"


def memory(sharded: Sharded, timeline: Timeline, backend: Backend | None, rows: tuple[Collective, ...]) -> Memory:
    """Return the memory of every pipeline stage. The stage with the highest peak represents the plan.

    Args:
        sharded: the plan with its layouts.
        timeline: the simulated step, for the microbatches in flight.
        backend: the target whose program's tensors are counted; None counts those that any correct program must keep.
        rows: the collectives, of the program if there is a `backend`, else of the plan. Without a `backend`, gradients
            that they reduce once a step count unsharded, whatever the plan stores.

    >>> costed.memory.stages == memory(sharded, costed.timed.timeline, None, costed.timed.rows).stages
    True
    >>> f"{costed.memory.per_device_gib.total:.1f} GiB of {costed.memory.capacity_gib:.0f}"
    '56.1 GiB of 80'
    """
    chip = sharded.plan.cluster.chip
    capacity = chip.memory_bytes / chip.devices
    if backend is None:
        tensors = required_tensor_bytes(sharded, timeline, rows)
    else:
        tensors = backend.peak_memory(sharded, rows, timeline.in_flight)
    stages = tuple(_stage(sharded, rank, held) for rank, held in enumerate(tensors))
    worst = max(stages, key=lambda s: s.per_device_gib.total).per_device_gib
    return Memory(
        capacity_gib=capacity / GIB,
        usable_gib=(capacity - chip.runtime_bytes) / (1 + chip.runtime_fraction) / GIB,
        per_device_gib=worst,
        stages=stages,
        allocated_gib=worst.tensors,
        reserved_gib=reserved(sharded, worst, foreign=backend is None),
    )


GIVEN_BACK = 0.04
"""Share of the device's memory that idle memory never takes: torch's allocator gives it back before it fails."""
MOST_LOST = 0.1
"""Largest observed share beyond the tensors' bytes that torch's allocator held in published runs without expandable
segments."""


def reserved(sharded: Sharded, worst: MemoryParts, *, foreign: bool) -> Reserved:
    """Return the range of peak memory (GiB) on the fullest device, whose memory by part is `worst`.

    If `foreign`, the plan of `sharded` is costed as its framework runs it. Published peaks of that framework may be
    lower than predicted by its policy's `spread`, which lowers the range's start. A target's own program has no spread.

    >>> held = reserved(sharded, costed.memory.per_device_gib, foreign=True)
    >>> f"{held.low:.1f} to {held.high:.1f} GiB"
    '54.0 to 59.1 GiB'
    """
    plan = sharded.plan
    chip, outside = plan.cluster.chip, outside_gib(plan, worst)
    spread = sharded.stack.policy.spread if foreign else 0.0
    lost = chip.runtime_fraction if sharded.stack.xla else max(MOST_LOST, chip.runtime_fraction)
    return Reserved(
        low=worst.tensors * (1 - spread) + outside, high=max(worst.total, worst.tensors * (1 + lost) + outside)
    )


def outside_gib(plan: Plan, worst: MemoryParts) -> float:
    """Return the GiB outside tensors on the fullest device of `plan`: communicators and runtime. `worst` is its memory.

    >>> f"{outside_gib(plan, costed.memory.per_device_gib):.1f} GiB"
    '2.5 GiB'
    """
    return worst.comm_buffers + plan.cluster.chip.runtime_bytes / GIB


def _stage(sharded: Sharded, rank: int, tensors: TensorBytes) -> StageMemory:
    plan = sharded.plan
    parts = {name: getattr(tensors, name) for name in TENSORS}
    parts["comm_buffers"] = communicators(sharded) * plan.cluster.chip.communicator_bytes
    allocated = sum(parts.values())
    chip = allocator_of(plan, sharded.stack)
    kept = min(chip.runtime_bytes + allocated + tensors.idle, (1 - GIVEN_BACK) * chip.memory_bytes / chip.devices)
    parts["reserve"] = max(with_reserve(chip, allocated), kept) - allocated
    gib = {name: amount / GIB for name, amount in parts.items()}
    return StageMemory(
        stage=rank,
        layers=sum(sections_on(plan, rank).get(kind, 0) for kind in plan.model.blocks),
        ranks=plan.mesh.devices // plan.pipeline,
        per_device_gib=MemoryParts(total=sum(gib.values()), **gib),
        peak_at=tensors.moment,
    )


def required_tensor_bytes(
    sharded: Sharded, timeline: Timeline, rows: tuple[Collective, ...]
) -> tuple[TensorBytes, ...]:
    """Return, for each pipeline rank, the bytes of the tensors that any correct program keeps.

    `timeline` holds the microbatches in flight on each rank of `sharded`'s pipeline. The collectives in `rows` tell
    whether gradients are reduced once a step.

    >>> held = required_tensor_bytes(sharded, costed.timed.timeline, costed.timed.rows)
    >>> [f"{tensors.activations / 2**30:.1f}" for tensors in held]  # GiB by rank: 4 to 1 microbatches in flight
    ['37.2', '27.9', '18.6', '9.7']
    """
    whole = _whole_until_the_end(sharded, rows)
    saved, replays = saved_by_section(sharded), replays_of(sharded)
    states: dict[tuple[tuple[Section, int], ...], _Held] = {}
    found = []
    for rank in range(sharded.plan.pipeline):
        held = tuple(sections_on(sharded.plan, rank).items())
        if held not in states:
            states[held] = _state(sharded, rank, whole, replays)
        state = states[held]
        activations, moment = _activations(sharded, timeline, rank, state.in_loss, saved)
        update = TensorBytes(**{**state.parts, "buffers": state.updated}, activations=0.0, moment=UPDATE)
        if sharded.stack.policy.fresh_grads and sharded.plan.microbatches == 1:
            moments = (*_from_no_gradients(sharded, state, activations, saved), update)
        else:
            moments = TensorBytes(**state.parts, activations=activations, moment=moment), update
        found.append(_with_idle(sharded, state, moments))
    return tuple(found)


def _with_idle(sharded: Sharded, state: _Held, moments: tuple[TensorBytes, ...]) -> TensorBytes:
    """Return the moment with the most tensors, with the idle bytes of the others: the largest activations, the buffers
    of the loss, of a block and of the update, and the gradients, less what exists at this moment."""
    worst = max(moments, key=lambda tensors: tensors.total)
    if not sharded.stack.policy.fixed_segments:
        return worst
    parts = state.parts
    kept = parts["params"] + parts["optimizer"] + parts["grads"] + max(m.activations for m in moments)
    kept += state.loss + max(state.block, state.first_block) - state.steady + state.updated
    return replace(worst, idle=max(0.0, kept - worst.total))


def _from_no_gradients(
    sharded: Sharded, state: _Held, activations: float, saved: dict[Section, float]
) -> tuple[TensorBytes, ...]:
    """Return the tensors of a rank in the backwards of the loss, of its last and of its first block, for a step of one
    microbatch (`activations`) that begins without gradients. `saved` is that of `saved_by_section`."""
    sections = state.sections
    blocks = {kind: saved[kind] for kind in sections if kind in sharded.plan.model.blocks}
    first = saved["first"] * ("first" in sections) + max(blocks.values(), default=0.0)
    if sharded.stack.policy.fsdp1 and sharded.model.has_frozen and state.gathered:
        first = activations - saved["last"] * ("last" in sections)
        first += sum(sections[kind] * size for kind, size in blocks.items())

    def at(where: str, grads: float, held: float, buffers: float) -> TensorBytes:
        parts = {**state.parts, "grads": grads, "buffers": buffers}
        return TensorBytes(**parts, activations=held, moment=during(f"backward of the {where}", 1))

    return (
        at("loss", 0.0, activations, state.loss),
        at("last layer", state.head_grads, activations, state.block),
        at("first layer", state.parts["grads"], first, state.first_block),
    )


def _whole_until_the_end(sharded: Sharded, rows: tuple[Collective, ...]) -> bool:
    """True if the gradients of several microbatches are accumulated unsharded, and reduced once a step."""
    reduced = [r for r in rows if r.carries == "grad" and r.op == "reduce_scatter"]
    return bool(reduced) and sharded.plan.microbatches > 1 and all(r.per == "step" for r in reduced)


class _Held(NamedTuple):
    """Everything on a rank that does not depend on the schedule, in bytes."""

    sections: dict[Section, int]
    parts: dict[str, float]
    """Each kind of tensors; buffers in the backward where they are largest."""
    in_loss: bool
    """True if that is the backward of the loss."""
    gathered: bool
    head_grads: float
    """Gradients that exist in the backward of the last block."""
    loss: float
    """Buffers in the backward of the loss; `block` and `first_block`: of the last and the first block."""
    block: float
    first_block: float
    updated: float
    """Buffers in the update."""
    steady: float
    """Buffers that exist in every backward."""


def _state(sharded: Sharded, rank: int, whole: bool, replays: Replays) -> _Held:
    """Return everything on `rank` that does not depend on the schedule."""
    plan = sharded.plan
    sections = sections_on(plan, rank)
    held = [(p, n) for p in sharded.params if (n := copies_on(plan, p.param, sections))]
    policy, workspaces = sharded.stack.policy, _workspaces(sharded) + bucket_bytes(sharded, held)
    root, root_grads = root_bytes(sharded, held) if policy.fsdp1 else (0.0, 0.0)
    inner = [(p, n) for p, n in held if not root or set(p.param.sections) & set(plan.model.blocks)]
    passing = gathered, reduced = state_buffers(sharded, inner)
    replayed = replay_buffers(replays, sections)
    block, loss = _in_both(passing, replayed, policy.gathered_in_loss and not root)
    first = gathered + reduced + replay_buffers(replays, {*sections} - {"last"})[0]
    steady = root + workspaces
    parts = {**resting(sharded, held, whole=whole), "buffers": max(block, loss) + steady}
    head = [(p, n) for p, n in held if "last" in p.param.sections]
    return _Held(
        sections,
        parts,
        in_loss=loss > block,
        gathered=gathered > 0,
        head_grads=resting(sharded, head, whole=whole)["grads"],
        loss=loss + steady,
        block=block + steady,
        first_block=first + steady + root_grads,
        updated=update_bytes(sharded, held) + temporaries(sharded, held) + workspaces,
        steady=steady,
    )


def _workspaces(sharded: Sharded) -> float:
    """Return the bytes of workspaces that libraries of the framework keep allocated."""
    plan = sharded.plan
    hides = any(o.method == "async_matmul" for o in plan.overlaps)
    return sharded.stack.policy.workspaces(plan.cluster.chip.name, experts=bool(plan.model.top_k), overlaps=hides)


def _activations(
    sharded: Sharded, timeline: Timeline, rank: int, in_loss: bool, saved: dict[Section, float]
) -> tuple[float, str]:
    """Return the bytes of saved tensors of all microbatches in flight on `rank` at the peak, and when the peak is."""
    plan = sharded.plan
    flying = timeline.in_flight[rank]
    total = sum(
        microbatches * sum(n * saved[section] for section, n in sections_of(plan, stage).items())
        for stage, microbatches in flying.items()
    )
    where = "loss" if in_loss else "last layer"
    if len(plan.stages) > 1 and not in_loss:
        where = f"last layer of virtual stage {max(flying, default=0)}"
    return total, during(f"backward of the {where}", sum(flying.values()))


def at_the_fullest(state: tuple[float, float], replayed: tuple[float, float], gathered_in_loss: bool = True) -> float:
    """Return the peak bytes of temporary memory: gathered parameters, unsharded gradients, recomputed tensors.

    `state` holds gathered and gradient bytes (`state_buffers`). `replayed` holds the bytes of a block's backward and of
    the loss's backward (`replay_buffers`). `gathered_in_loss` is True if gathered parameters are allocated in the
    loss's backward too.

    >>> at_the_fullest((10.0, 4.0), (6.0, 8.0))  # the last block's backward reduces beside its recompute
    20.0
    """
    return max(_in_both(state, replayed, gathered_in_loss))


def _in_both(state: tuple[float, float], replayed: tuple[float, float], gathered_in_loss: bool) -> tuple[float, float]:
    """Return the temporary bytes in the backward of the last block, and in the backward of the loss."""
    (gathered, reduced), (block, loss) = state, replayed
    return gathered + block + reduced, gathered * gathered_in_loss + loss


def allocator_of(plan: Plan, stack: Stack) -> Chip:
    """Return the chip of `plan`, on several nodes with the allocator loss that the stack has there, if any."""
    chip, lost = plan.cluster.chip, stack.policy.lost_across_nodes
    return replace(chip, runtime_fraction=lost) if lost and plan.cluster.count > 1 else chip


def with_reserve(chip: Chip, allocated_bytes: float) -> float:
    """Return the device bytes used for `allocated_bytes` of tensors: the tensors, the runtime of `chip`, and the
    allocator's fragmentation, a share of the allocated bytes.

    >>> with_reserve(h100, 10e9) == h100.runtime_bytes + (1 + h100.runtime_fraction) * 10e9
    True
    """
    return chip.runtime_bytes + (1 + chip.runtime_fraction) * allocated_bytes
