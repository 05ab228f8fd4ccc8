"""Dims and the axes that shard them, and edits that resize an axis so that a dim is divisible."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import mesh_sentence, replace, sentence
from planc.diag.diagnostic import Fix
from planc.ir.plan import Plan


def divided(plan: Plan) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield (dim, axes, region) for each dim that `plan` shards, except the batch. The region is the part of the model
    with that layout, "" for all. A dim with the same axes in several regions is yielded once."""
    seen = set()
    for shard in plan.shards:
        regions = (shard.region,) if shard.region else ("", *plan.model.regions)
        for region in regions:
            axes = plan.axes_of(shard.dim, region)
            if shard.dim != "batch" and axes and (shard.dim, axes) not in seen:
                seen.add((shard.dim, axes))
                yield shard.dim, axes, region


def resize(plan: Plan, axis: str, legal: list[int]) -> Fix | None:
    """Return the edit that shrinks `axis` to the largest possible size in `legal`. A data axis grows by the same
    factor, so that the number of ranks stays the same. None if no size works."""
    sizes = plan.mesh.sizes
    if axis not in sizes:
        return None  # an axis of a view: its product is another
    other = next((a for a in reversed(plan.data_axes) if a != axis), None)
    if other is None:
        return _with_data_axis(plan, axis, legal)
    for size in sorted(legal, reverse=True):
        if size < sizes[axis] and sizes[axis] % size == 0:
            grown = sizes[other] * sizes[axis] // size
            ranks = plan.data_parallel // sizes[other] * grown
            if plan.batch.sequences % (ranks * plan.batch.microbatch_sequences) == 0:
                return replace(plan.mesh.cause, mesh_sentence({**sizes, axis: size, other: grown}))
    return None


def _with_data_axis(plan: Plan, axis: str, legal: list[int]) -> Fix | None:
    """Return the edit that shrinks `axis` and adds an outermost data axis, so that the rank count stays the same. A
    data axis of one rank, which state is stored over, grows instead."""
    sizes = plan.mesh.sizes
    idle = next((a for s in plan.stores for a in s.axes if sizes.get(a) == 1), "")
    if not idle and ("dp" in sizes or plan.data_axes):
        return None
    for size in sorted(legal, reverse=True):
        ranks = sizes[axis] // size
        even = size < sizes[axis] and sizes[axis] % size == 0
        if even and plan.batch.sequences % (ranks * plan.batch.microbatch_sequences) == 0:
            if idle:
                return replace(plan.mesh.cause, mesh_sentence({**sizes, idle: ranks, axis: size}))
            mesh = mesh_sentence({"dp": ranks, **sizes, axis: size})
            return replace(plan.mesh.cause, mesh + "\n" + sentence("use", "ddp over dp"))
    return None
