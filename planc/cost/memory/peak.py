"""Bytes on one device at its fullest moment, by part and pipeline stage.

State: master parameters, gradients and two AdamW moments where the plan stores them, and the compute
copy of gathered parameters. Activations: what the backward needs of each microbatch in flight. Two moments
compete for what comes and goes: the backward of the loss, and that of the last block, when the logits are gone.

The reserve is what no tensor of the program is in: the runtime, and memory that the allocator cannot give again.
"""

from __future__ import annotations

from planc.cost.memory.activations import Replays, replay_buffers, replays_of, saved_by_section
from planc.cost.memory.state import communicators, resting, state_buffers
from planc.ir.collective import Collective
from planc.ir.hardware import Chip
from planc.ir.model import Section
from planc.ir.report import Memory, MemoryParts, StageMemory
from planc.ir.sharding import Sharded
from planc.pipeline.timeline import Timeline
from planc.sharding.stage_assignment import copies_on, sections_of, sections_on

GIB = 2.0**30


def memory(sharded: Sharded, timeline: Timeline, rows: tuple[Collective, ...]) -> Memory:
    """The memory of every pipeline stage; the fullest one speaks for the plan.

    Gradients that `rows` reduce once a step are held whole until then, whatever the plan stores.
    """
    chip = sharded.plan.cluster.chip
    capacity = chip.memory_bytes / chip.devices
    whole = _whole_until_the_end(sharded, rows)
    saved, replays = saved_by_section(sharded), replays_of(sharded)
    alike: dict[tuple[tuple[Section, int], ...], tuple[dict[str, float], bool]] = {}
    stages = []
    for rank in range(sharded.plan.pipeline):
        held = tuple(sections_on(sharded.plan, rank).items())
        if held not in alike:
            alike[held] = _state(sharded, rank, whole, replays)
        stages.append(_stage(sharded, timeline, rank, *alike[held], saved))
    worst = max(stages, key=lambda s: s.per_device_gib.total)
    return Memory(
        capacity_gib=capacity / GIB,
        usable_gib=(capacity - chip.runtime_bytes) / (1 + chip.runtime_fraction) / GIB,
        per_device_gib=worst.per_device_gib,
        stages=tuple(stages),
    )


def _whole_until_the_end(sharded: Sharded, rows: tuple[Collective, ...]) -> bool:
    """True if several microbatches' gradients add up before they are reduced."""
    reduced = [r for r in rows if r.carries == "grad" and r.op == "reduce_scatter"]
    return bool(reduced) and sharded.plan.microbatches > 1 and all(r.per == "step" for r in reduced)


def _state(sharded: Sharded, rank: int, whole: bool, replays: Replays) -> tuple[dict[str, float], bool]:
    """Bytes of all that does not depend on the schedule, and whether they are the most in the backward of the loss;
    ranks that hold alike sections have alike state."""
    plan = sharded.plan
    sections = sections_on(plan, rank)
    held = [(p, n) for p in sharded.params if (n := copies_on(plan, p.param, sections))]
    moments = state_buffers(sharded, held), replay_buffers(replays, sections)
    parts = {
        **resting(sharded, held, whole=whole),
        "buffers": at_the_fullest(*moments),
        "comm_buffers": communicators(sharded) * plan.cluster.chip.communicator_bytes,
    }
    return parts, loss_is_fullest(*moments)


def _stage(
    sharded: Sharded, timeline: Timeline, rank: int, state: dict[str, float], in_loss: bool, saved: dict[Section, float]
) -> StageMemory:
    plan = sharded.plan
    activations, moment = _activations(sharded, timeline, rank, in_loss, saved)
    parts = {**state, "activations": activations}
    allocated = sum(parts.values())
    parts["reserve"] = with_reserve(plan.cluster.chip, allocated) - allocated
    gib = {name: amount / GIB for name, amount in parts.items()}
    return StageMemory(
        stage=rank,
        layers=sum(sections_on(plan, rank).get(kind, 0) for kind in plan.model.blocks),
        ranks=plan.mesh.devices // plan.pipeline,
        per_device_gib=MemoryParts(total=sum(gib.values()), **gib),
        peak_at=moment,
    )


def _activations(
    sharded: Sharded, timeline: Timeline, rank: int, in_loss: bool, saved: dict[Section, float]
) -> tuple[float, str]:
    """Saved tensors of every microbatch in flight at the fullest moment."""
    plan = sharded.plan
    flying = timeline.in_flight[rank]
    total = sum(
        microbatches * sum(n * saved[section] for section, n in sections_of(plan, stage).items())
        for stage, microbatches in flying.items()
    )
    count = sum(flying.values())
    where = "loss" if in_loss else "last layer"
    if len(plan.stages) > 1 and not in_loss:
        where = f"last layer of virtual stage {max(flying, default=0)}"
    return total, f"backward of the {where}, {count} microbatch{'es' if count > 1 else ''} in flight"


def at_the_fullest(state: tuple[float, float], replayed: tuple[float, float]) -> float:
    """Bytes that come and go, at the moment when they are the most: see `state_buffers` and `replay_buffers`."""
    gathered, reduced = state
    block, loss = replayed
    return gathered + max(loss, block + reduced)


def loss_is_fullest(state: tuple[float, float], replayed: tuple[float, float]) -> bool:
    """Whether that moment is the backward of the loss, and not the last block's."""
    (_, reduced), (block, loss) = state, replayed
    return loss > block + reduced


def with_reserve(chip: Chip, allocated_bytes: float) -> float:
    """Bytes that are taken from a device for these in tensors: those that the runtime holds, and what the allocator
    loses between tensors, a share of what it gives out."""
    return chip.runtime_bytes + (1 + chip.runtime_fraction) * allocated_bytes
