"""Bytes on one device, by part and pipeline stage.

State: master parameters, gradients and two AdamW moments where the plan stores them, and the compute
copy of gathered parameters. Activations: what the backward needs of each microbatch in flight. Two moments
compete for what comes and goes: the backward of the loss, and that of the last block, when the logits are gone.

The reserve is what no tensor of the program is in: the runtime, and memory that the allocator cannot give again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from planc.cost.compute import quantized
from planc.cost.step.offload import kept_bytes, offloaded
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.hardware import Chip
from planc.ir.model import Op, Section
from planc.ir.plan import Noun, Plan
from planc.ir.report import Memory, MemoryParts, StageMemory
from planc.ir.sharding import ParamSharding, Sharded
from planc.pipeline.timeline import Timeline
from planc.sharding.local import param_elements, stored_elements, tensor_bytes
from planc.sharding.recompute import everything_kept, replay
from planc.sharding.redistribute import restrict
from planc.sharding.stage_assignment import copies_on, sections_of, sections_on

GIB = 2.0**30
PREFETCHED = 2
"""Blocks whose gathered parameters are there at once: the one in use and the next."""
LANDING = 1
"""Buffers of the size of a gathered block that torch keeps beside: a gather lands in one that belongs to the stream of
transfers, and is copied out (`torch.distributed.fsdp`, `_fsdp_collectives.py`). XLA gathers in place."""
LOSS_COPIES = {"eager": 3, "divided": 4, "xla": 2}
"""fp32 tensors like the logits in the backward of an eager loss: log-probabilities, their gradient and that of the
logits; with a divided vocab the backward is several ops (`torch.distributed.tensor.parallel.loss`). XLA takes
near two, for it keeps the head's whole gradient until all is summed."""

Held = list[tuple[ParamSharding, int]]
"""Parameters with their copies on a device."""


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
    """Whether several microbatches' gradients add up before they are reduced."""
    reduced = [r for r in rows if r.carries == "grad" and r.op == "reduce_scatter"]
    once = all(r.count <= _copies(sharded, r) for r in reduced)
    return bool(reduced) and sharded.plan.microbatches > 1 and once


def _copies(sharded: Sharded, row: Collective) -> int:
    """How often the row's tensor is on its stage."""
    return sections_on(sharded.plan, row.stage).get(row.section, 1)


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


def resting(sharded: Sharded, held: Held, *, whole: bool = False) -> dict[str, float]:
    """Bytes of masters, gradients and moments of these parameters, each so many times, between steps."""
    kept = "optimizer" not in offloaded(sharded.plan)
    return {
        "params": _params(sharded, held),
        "grads": _grads(sharded, held, whole=whole),
        "optimizer": 2 * _noun(sharded, held, "optimizer") if kept else 0.0,
    }


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


def _params(sharded: Sharded, held: Held) -> float:
    """Masters where they rest, and a whole compute copy when it outlives a pass.

    The masters of ZeRO-1 and ZeRO-2 rest with the optimizer; the copy is what is computed with.
    """
    plan = sharded.plan
    total = 0.0
    for p, n in held:
        size = DTYPE_BYTES[plan.store_dtype("params", p.param.region)]
        if "params" not in offloaded(plan):
            total += n * stored_elements(plan, p, p.stored["params"] or p.stored["optimizer"]) * size
        if _copy_stays(plan, p):
            total += n * param_elements(plan, p) * DTYPE_BYTES[plan.precision.compute]
    return total


def _grads(sharded: Sharded, held: Held, *, whole: bool) -> float:
    """Gradients where they rest; `whole` when several microbatches add up before they are reduced."""
    plan = sharded.plan
    if not whole:
        return _noun(sharded, held, "grads")
    return sum(n * param_elements(plan, p) * DTYPE_BYTES[plan.store_dtype("grads", p.param.region)] for p, n in held)


def _copy_stays(plan: Plan, p: ParamSharding) -> bool:
    """Whether the whole compute copy of a parameter is there at the peak."""
    if p.stored["params"]:
        return plan.gather_per in ("microbatch", "step")
    return bool(p.stored["optimizer"]) or plan.precision.compute != plan.store_dtype("params", p.param.region)


def _noun(sharded: Sharded, held: Held, noun: Noun) -> float:
    plan = sharded.plan
    return sum(
        n * stored_elements(plan, p, p.stored[noun]) * DTYPE_BYTES[plan.store_dtype(noun, p.param.region)]
        for p, n in held
    )


def at_the_fullest(state: tuple[float, float], replayed: tuple[float, float]) -> float:
    """Bytes that come and go, at the moment when they are the most: see `state_buffers` and `replay_buffers`."""
    gathered, reduced = state
    block, loss = replayed
    return gathered + max(loss, block + reduced)


def loss_is_fullest(state: tuple[float, float], replayed: tuple[float, float]) -> bool:
    """Whether that moment is the backward of the loss, and not the last block's."""
    (_, reduced), (block, loss) = state, replayed
    return loss > block + reduced


def state_buffers(sharded: Sharded, held: Held) -> tuple[float, float]:
    """Bytes of gathered blocks, which are always there, and of a block's whole gradient, in its backward."""
    return largest(passing_bytes(sharded, (p for p, _ in held)).values())


PassingBytes = tuple[float, float]
"""Of a section: its gathered copies, as many as are there at once, and its whole gradient."""


def passing_bytes(sharded: Sharded, params: Iterable[ParamSharding]) -> dict[Section, PassingBytes]:
    """What of these parameters comes and goes, by the section that uses them."""
    plan = sharded.plan
    blocks = (PREFETCHED + LANDING * (not by_xla(plan))) if plan.gather_per == "pass" else 0
    gathered, reduced = blocks * DTYPE_BYTES[plan.precision.compute], DTYPE_BYTES[plan.precision.reduce]
    found: dict[Section, PassingBytes] = {}
    for p in params:
        elements = param_elements(plan, p)
        mine = gathered * elements * bool(p.stored["params"]), reduced * elements * bool(p.stored["grads"])
        for section in p.param.sections:
            others = found.get(section, (0.0, 0.0))
            found[section] = others[0] + mine[0], others[1] + mine[1]
    return found


def largest(sections: Iterable[PassingBytes]) -> PassingBytes:
    """The most of each over some sections: one after the other is there."""
    gathered = reduced = 0.0
    for one, other in sections:
        gathered, reduced = max(gathered, one), max(reduced, other)
    return gathered, reduced


@dataclass(frozen=True, slots=True)
class Replays:
    """Bytes that a backward brings beside what was saved: by block what it runs again, and those of the loss.

    XLA makes one program of all, whose tensors are not in order: it has them `together`.
    """

    blocks: dict[Section, float]
    logits: float
    loss: float
    together: bool


def replays_of(sharded: Sharded) -> Replays:
    """What the backwards of the blocks and of the loss bring."""
    blocks = {kind: _replayed(sharded, kind) for kind in sharded.plan.model.blocks}
    return Replays(blocks, _logits(sharded), loss_bytes(sharded), by_xla(sharded.plan))


def replay_buffers(replays: Replays, sections: Container[Section]) -> tuple[float, float]:
    """Bytes that come in the backward of the last block and in that of the loss, on a rank with these sections.

    The first brings back what a block runs again, when the logits and all else of the loss are gone.
    """
    back = max((size for kind, size in replays.blocks.items() if kind in sections), default=0.0)
    if "last" not in sections:
        return back, 0.0
    if replays.together:
        return back + replays.loss, 0.0
    return max(0.0, back - replays.logits), replays.loss


def by_xla(plan: Plan) -> bool:
    """Whether XLA runs the plan, which makes one program of a step: on its own machines it does."""
    return plan.cluster.kind == "torus"


def _replayed(sharded: Sharded, kind: Section) -> float:
    """What one block's replay brings back while its backward runs."""
    if not replay(sharded.plan, kind).ops:
        return 0.0
    return max(0.0, _block_saved(sharded, kind, everything=True) - _block_saved(sharded, kind))


def _logits(sharded: Sharded) -> float:
    """Bytes of the saved logits, in the compute dtype."""
    loss = sharded.ops["last"][-1]
    name = loss.op.inputs[0]
    return tensor_bytes(sharded.plan, name, restrict(loss.layout, sharded.model.tensor[name].dims))


def loss_bytes(sharded: Sharded) -> float:
    """What the backward of the loss needs beside the saved logits: their gradient alone where it is compiled as
    one region, else fp32 tensors, op by op."""
    plan, one = sharded.plan, _logits(sharded)
    if plan.compiled("loss"):
        return one
    divided = bool(sharded.ops["last"][-1].layout.get("vocab"))
    made_by = "xla" if by_xla(plan) else "divided" if divided else "eager"
    return LOSS_COPIES[made_by] * one * 4 / DTYPE_BYTES[plan.precision.compute]


def saved_by_section(sharded: Sharded) -> dict[Section, float]:
    """Bytes that one microbatch leaves behind in each section."""
    saved = {kind: _kept_of_block(sharded, kind) for kind in sharded.model.blocks}
    return saved | {section: _section_saved(sharded, section) for section in ("first", "last")}


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


def _kept_of_block(sharded: Sharded, kind: Section) -> float:
    """The mean over layers when only every so many of them are run again."""
    every = sharded.plan.recompute.every
    some = _block_saved(sharded, kind)
    return some if every == 1 else (some + (every - 1) * _block_saved(sharded, kind, everything=True)) / every


def _block_saved(sharded: Sharded, kind: Section, *, everything: bool = False) -> float:
    """Bytes kept of one block for one microbatch; `everything` as if nothing were recomputed."""
    kept = everything_kept(sharded.model, kind) if everything else replay(sharded.plan, kind).kept
    away = offloaded(sharded.plan)
    return sum(_saved_bytes(sharded, name, kind) for name in kept if name not in away)


def _section_saved(sharded: Sharded, section: str) -> float:
    ops = [o.op for s, ops in sharded.ops.items() if s == section for o in ops]
    names = dict.fromkeys(t for op in ops for t in op.saves)
    return sum(_saved_bytes(sharded, name, section) for name in names)


def _saved_bytes(sharded: Sharded, name: str, section: str) -> float:
    """A tensor is saved in the layout its consumer asked for: gathered, if it was gathered."""
    known = sharded.plan.memo.get(("saved_bytes", name, section))
    if known is None:
        share = sharded.told.get(("narrowing", name, section))
        if share is None:
            savers = [o.op for o in sharded.ops[section] if name in o.op.saves]
            share = sharded.told["narrowing", name, section] = _narrowing(sharded, section, savers)
        known = sharded.plan.memo["saved_bytes", name, section] = kept_bytes(sharded, name, section) * share
    return float(known)


def _narrowing(sharded: Sharded, section: str, consumers: list[Op]) -> float:
    """What is saved for matmuls with scales by tile alone, or to make their inputs anew, has their dtype.

    DeepSeek-AI 2024, "DeepSeek-V3" (arXiv 2412.19437), section 3.3.3. Other recipes cast again in the
    backward and save what they were given.
    """
    dtypes = {_tiled(sharded.plan, op) or _before_tiled(sharded, section, op) for op in consumers}
    if len(dtypes) != 1 or "" in dtypes:
        return 1.0
    return DTYPE_BYTES[dtypes.pop()] / DTYPE_BYTES[sharded.plan.precision.compute]


def _tiled(plan: Plan, op: Op) -> str:
    """The dtype of a matmul whose inputs are scaled by tile; an empty string for another op."""
    chosen = quantized(plan, op)
    return chosen.dtype if chosen is not None and (chosen.tile or chosen.recipe == "blockwise") else ""


def _before_tiled(sharded: Sharded, section: str, op: Op) -> str:
    """The same for an elementwise op whose result only such matmuls take."""
    takers = [o.op for o in sharded.ops[section] if op.output in o.op.inputs]
    dtypes = {_tiled(sharded.plan, taker) for taker in takers} if op.kind == "elementwise" else set()
    return dtypes.pop() if len(dtypes) == 1 else ""


def communicators(sharded: Sharded) -> int:
    """Distinct groups of ranks that a device belongs to: one per axis in use, plus the whole."""
    return len([a for a in sharded.plan.mesh.every.values() if a.size > 1]) + 1


def with_reserve(chip: Chip, allocated_bytes: float) -> float:
    """Bytes that are taken from a device for these in tensors: those that the runtime holds, and what the allocator
    loses between tensors, a share of what it gives out."""
    return chip.runtime_bytes + (1 + chip.runtime_fraction) * allocated_bytes
