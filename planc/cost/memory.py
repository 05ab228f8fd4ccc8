"""Bytes on one device, by part and pipeline stage.

State: master parameters, gradients and two AdamW moments where the plan stores them, and the compute
copy of gathered parameters. Activations: what the backward needs of each microbatch in flight.
"""

from __future__ import annotations

from planc.cost.schedule import Timeline
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.hardware import Chip
from planc.ir.model import Section
from planc.ir.plan import Noun
from planc.ir.report import Memory, MemoryParts, StageMemory
from planc.ir.sharding import Layout, ParamSharding, Sharded
from planc.sharding.local import param_elements, stored_elements, tensor_bytes
from planc.sharding.redistribute import restrict
from planc.sharding.replay import close, replay
from planc.sharding.stages import sections_on

GIB = 2.0**30
PREFETCHED = 2
"""Blocks whose gathered parameters are there at once: the one in use and the next."""


def memory(sharded: Sharded, timeline: Timeline, rows: tuple[Collective, ...]) -> Memory:
    """The memory of every pipeline stage; the fullest one speaks for the plan.

    Gradients that `rows` reduce once a step are held whole until then, whatever the plan stores.
    """
    chip = sharded.plan.cluster.chip
    capacity = chip.memory_bytes / chip.devices
    whole = _whole_until_the_end(sharded, rows)
    stages = tuple(_stage(sharded, timeline, rank, whole) for rank in range(sharded.plan.pipeline))
    worst = max(stages, key=lambda s: s.per_device_gib.total)
    return Memory(
        capacity_gib=capacity / GIB,
        usable_gib=(capacity - _reserve(chip)) / GIB,
        per_device_gib=worst.per_device_gib,
        stages=stages,
    )


def _whole_until_the_end(sharded: Sharded, rows: tuple[Collective, ...]) -> bool:
    """Whether several microbatches' gradients add up before they are reduced."""
    reduced = [r for r in rows if r.carries == "grad" and r.op == "reduce_scatter"]
    once = all(r.count <= _copies(sharded, r) for r in reduced)
    return bool(reduced) and sharded.plan.microbatches > 1 and once


def _copies(sharded: Sharded, row: Collective) -> int:
    """How often the row's tensor is on its stage."""
    return sections_on(sharded.plan, row.stage).get(row.section, 1)


def _stage(sharded: Sharded, timeline: Timeline, rank: int, whole: bool) -> StageMemory:
    plan = sharded.plan
    sections = sections_on(plan, rank)
    copies = {p.param.name: sections.get(p.param.section, 0) for p in sharded.params}
    held = [(p, copies[p.param.name]) for p in sharded.params if copies[p.param.name]]
    activations, moment = _activations(sharded, timeline, rank)
    parts = {
        "params": _params(sharded, held),
        "grads": _copy(sharded, held, plan.store_dtype("grads"))
        if whole
        else _noun(sharded, held, "grads", plan.store_dtype("grads")),
        "optimizer": 2 * _noun(sharded, held, "optimizer", plan.store_dtype("optimizer")),
        "activations": activations,
        "buffers": _buffers(sharded, held),
        "comm_buffers": communicators(sharded) * plan.cluster.chip.communicator_bytes,
        "reserve": _reserve(plan.cluster.chip),
    }
    gib = {name: amount / GIB for name, amount in parts.items()}
    return StageMemory(
        stage=rank,
        layers=sections.get("block", 0),
        ranks=plan.mesh.devices // plan.pipeline,
        per_device_gib=MemoryParts(total=sum(gib.values()), **gib),
        peak_at=moment,
    )


Held = list[tuple[ParamSharding, int]]


def _params(sharded: Sharded, held: Held) -> float:
    """Masters where they rest, and a whole compute copy when it outlives a pass.

    The masters of ZeRO-1 and ZeRO-2 rest with the optimizer; the copy is what is computed with.
    """
    plan = sharded.plan
    size = DTYPE_BYTES[plan.store_dtype("params")]
    masters = sum(n * stored_elements(plan, p, p.stored["params"] or p.stored["optimizer"]) * size for p, n in held)
    return masters + (_copy(sharded, held, plan.precision.compute) if _copy_stays(sharded) else 0.0)


def _copy(sharded: Sharded, held: Held, dtype: str) -> float:
    """A whole copy of the parameters, or of what has their shape."""
    size = DTYPE_BYTES[dtype]
    return sum(n * param_elements(sharded.plan, p) * size for p, n in held)


def _copy_stays(sharded: Sharded) -> bool:
    """Whether the whole compute copy is there at the peak."""
    plan = sharded.plan
    if plan.gather_per in ("microbatch", "step") and plan.store("params"):
        return True
    divided = bool(plan.store("optimizer")) and not plan.store("params")
    return divided or (plan.precision.compute != plan.store_dtype("params") and not plan.store("params"))


def _noun(sharded: Sharded, held: Held, noun: Noun, dtype: str) -> float:
    size = DTYPE_BYTES[dtype]
    return sum(n * stored_elements(sharded.plan, p, p.stored[noun]) * size for p, n in held)


def _buffers(sharded: Sharded, held: Held) -> float:
    """What comes and goes: gathered blocks, a block's whole gradient, a replayed block, the logits."""
    plan = sharded.plan
    groups: dict[Section, float] = {}
    for p, _ in held:
        groups[p.param.section] = groups.get(p.param.section, 0) + param_elements(plan, p)
    largest = max(groups.values(), default=0.0)
    total = 0.0
    if plan.store("params") and plan.gather_per == "pass":
        total += PREFETCHED * largest * DTYPE_BYTES[plan.precision.compute]
    if plan.store("grads"):
        total += largest * DTYPE_BYTES[plan.precision.reduce]
    if replay(plan).ops:
        total += max(0.0, _block_saved(sharded, everything=True) - _block_saved(sharded))
    if any(p.param.section == "last" for p, _ in held):
        total += _logits(sharded)
    return total


def _logits(sharded: Sharded) -> float:
    """The fp32 copy of the logits and their gradient, beside the saved ones."""
    loss = sharded.ops["last"][-1]
    layout = restrict(loss.layout, sharded.model.tensor["logits"].dims) if "logits" in loss.op.inputs else {}
    one = tensor_bytes(sharded.plan, loss.op.inputs[0], layout)
    return 2 * one * 4 / DTYPE_BYTES[sharded.plan.precision.compute]


def _activations(sharded: Sharded, timeline: Timeline, rank: int) -> tuple[float, str]:
    """Saved tensors of every microbatch in flight at the fullest moment."""
    plan = sharded.plan
    block = _block_saved(sharded)
    ends = {section: _section_saved(sharded, section) for section in ("first", "last")}
    total, flying = 0.0, timeline.in_flight[rank]
    for stage, microbatches in flying.items():
        first, last = plan.stages[stage]
        one = (last - first) * block
        one += ends["first"] if stage == 0 else 0.0
        one += ends["last"] if stage == len(plan.stages) - 1 else 0.0
        total += one * microbatches
    count = sum(flying.values())
    where = "last layer" if len(plan.stages) == 1 else f"last layer of virtual stage {max(flying, default=0)}"
    return total, f"backward of the {where}, {count} microbatch{'es' if count > 1 else ''} in flight"


def _block_saved(sharded: Sharded, *, everything: bool = False) -> float:
    """Bytes kept of one block for one microbatch; `everything` as if nothing were recomputed."""
    block = sharded.model.ops["block"]
    kept = close(sharded.model, block, set()).kept if everything else replay(sharded.plan).kept
    return sum(_saved_bytes(sharded, name, "block") for name in kept)


def _section_saved(sharded: Sharded, section: str) -> float:
    ops = [o.op for s, ops in sharded.ops.items() if s == section for o in ops]
    names = dict.fromkeys(t for op in ops for t in op.saves)
    return sum(_saved_bytes(sharded, name, section) for name in names)


def _saved_bytes(sharded: Sharded, name: str, section: str) -> float:
    """A tensor is saved in the layout its consumer asked for: gathered, if it was gathered."""
    consumers = [o for s, ops in sharded.ops.items() if s == section for o in ops if name in o.op.saves]
    layouts = [_as_used(sharded, o.layout, name) for o in consumers]
    unique = {repr(layout): layout for layout in layouts}
    return sum(tensor_bytes(sharded.plan, name, layout) for layout in unique.values())


def _as_used(sharded: Sharded, layout: Layout, name: str) -> Layout:
    return restrict(layout, sharded.model.tensor[name].dims)


def communicators(sharded: Sharded) -> int:
    """Distinct groups of ranks that a device belongs to: one per axis in use, plus the whole."""
    return len([a for a in sharded.plan.mesh.axes if a.size > 1]) + 1


def _reserve(chip: Chip) -> float:
    return chip.runtime_bytes + chip.runtime_fraction * chip.memory_bytes / chip.devices
