"""A predicted memory snapshot in the format of `torch.cuda.memory._snapshot`, for torch's own memory viewer.

It is a pickle of plain dictionaries, which torch/cuda/_memory_viz.py and torch/utils/viz/MemoryViz.js read: a device
for each pipeline rank, and an allocation for each part of its memory and for the activations of each microbatch. In
place of stack frames it has the part and the plan's sentence that causes it.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

from planc.costing.costed import CostedPlan
from planc.costing.step.memory_over_step import HeldBytes, held_over_step
from planc.ir.base import Cause
from planc.ir.plan import Plan
from planc.pipeline.simulate import action_spans
from planc.pipeline.split import action_lists

ALIGNED_BYTES = 512
"""Alignment of torch's allocations."""
US_PER_S = 1e6
BASE = 0x7F0000000000
"""Address of a device's first allocation."""


def memory_snapshot(costed: CostedPlan) -> dict[str, Any]:
    """Return the snapshot of one step of `costed`: allocations and frees of each rank, and what remains at the end."""
    plan = costed.sharded.plan
    held = held_over_step(
        costed, action_spans(action_lists(costed.timed.split, plan.pipeline, plan.microbatches), costed.timed.times)
    )
    ranks = [[h for h in held if h.rank == rank] for rank in range(plan.pipeline)]
    blocks = [_blocks(plan, mine) for mine in ranks]
    return {
        "segments": [_segment(device, mine) for device, mine in enumerate(blocks)],
        "device_traces": [_trace(mine) for mine in blocks],
        "allocator_settings": {"expandable_segments": False, "garbage_collection_threshold": 0.0},
    }


def pickled(snapshot: dict[str, Any]) -> bytes:
    """Return `snapshot` as the bytes of a file that the viewer opens."""
    return pickle.dumps(snapshot, protocol=4)


class _Block(NamedTuple):
    held: HeldBytes
    address: int
    size: int
    frames: list[dict[str, Any]]


def _blocks(plan: Plan, held: list[HeldBytes]) -> list[_Block]:
    """Return the allocations in order of time. Each lies after the previous one in memory; addresses are not reused."""
    found, address = [], BASE
    for one in sorted(held, key=lambda h: h.start_s):
        size = max(ALIGNED_BYTES, round(one.size_bytes / ALIGNED_BYTES) * ALIGNED_BYTES)
        found.append(_Block(one, address, size, _frames(plan, one)))
        address += size
    return found


def _segment(device: int, blocks: list[_Block]) -> dict[str, Any]:
    """Return one memory segment with every allocation of a device; those without an end are marked as allocated."""
    total, left = sum(b.size for b in blocks), sum(b.size for b in blocks if b.held.end_s is None)
    return {
        "device": device,
        "address": BASE,
        "total_size": total,
        "allocated_size": left,
        "active_size": left,
        "requested_size": left,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {
                "address": b.address,
                "size": b.size,
                "requested_size": b.size,
                "state": "active_allocated" if b.held.end_s is None else "inactive",
                "frames": b.frames,
            }
            for b in blocks
        ],
    }


def _trace(blocks: list[_Block]) -> list[dict[str, Any]]:
    """Return the events (allocations and frees) of `blocks` in order of time. At equal times, frees come first."""
    events: list[tuple[float, int, dict[str, Any]]] = []
    for b in blocks:
        events.append((b.held.start_s, 1, _event("alloc", b, b.held.start_s)))
        if b.held.end_s is not None:
            events.append((b.held.end_s, 0, _event("free_requested", b, b.held.end_s)))
            events.append((b.held.end_s, 0, _event("free_completed", b, b.held.end_s)))
    return [event for _, _, event in sorted(events, key=lambda e: e[:2])]


def _event(action: str, block: _Block, at_s: float) -> dict[str, Any]:
    return {
        "action": action,
        "addr": block.address,
        "size": block.size,
        "stream": 0,
        "time_us": round(at_s * US_PER_S),
        "frames": block.frames,
    }


def _frames(plan: Plan, held: HeldBytes) -> list[dict[str, Any]]:
    """Return a stack trace for the viewer, innermost frame first: memory part, sentence that causes it, plan."""
    cause = _cause(plan, held.part)
    of = f" of microbatch {held.microbatch}, stage {held.stage}" if held.microbatch is not None else ""
    file = cause.span.file if cause is not None else f"{plan.name}.plan"
    line = cause.span.line if cause is not None else 0
    found = [{"name": f"{held.part.replace('_', ' ')}{of}", "filename": file, "line": line}]
    if cause is not None:
        found.append({"name": " ".join(cause.sentence.split()), "filename": file, "line": line})
    return [*found, {"name": f"plan {plan.name}", "filename": file, "line": 1}]


def _cause(plan: Plan, part: str) -> Cause | None:
    """Return the sentence of `plan` that determines the size of this part of the memory."""
    stored = next((s.cause for s in plan.stores if s.noun == part), None)
    if part == "activations":
        return plan.recompute.cause or plan.batch.cause
    return stored or plan.model.cause
