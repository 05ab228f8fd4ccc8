"""The bytes of a checkpoint that devices receive when a run resumes with another layout.

A checkpoint holds each parameter and its two AdamW moments in fp32. On the same machine, rank i of plan A becomes rank
i of plan B: it receives only the elements of its shards under B that it did not hold under A.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from planc.compare.shard_intervals import Runs, StoredLayout, layers_on_rank, length, shared, stored_layout
from planc.diag.fast_dataclass import dataclass
from planc.ir.backend import StateLayout
from planc.ir.mesh import Axis
from planc.ir.plan import Noun
from planc.ir.sharding import Sharded
from planc.ir.updates import moment_elements, moments_of

ELEMENT_BYTES = 4
"""Checkpoints are stored in fp32, whatever the compute dtype."""


@dataclass(frozen=True, kw_only=True)
class ReshardingBytes:
    """The bytes that devices receive, summed over devices; `worst_device_bytes` are the most of one device."""

    same_machine: bool
    checkpoint_bytes: int
    needed_bytes: int
    """Bytes that all devices hold under B: more than the checkpoint if some are replicas."""
    moved_bytes: int
    """Bytes of these that a device does not hold under A."""
    worst_device_bytes: int
    worst_device: int


def resharding_bytes(
    before: Sharded, after: Sharded, rests: tuple[StateLayout, StateLayout], *, same_machine: bool = True
) -> ReshardingBytes:
    """Return the bytes that devices receive to change from the layouts of `before` to those of `after`, which have the
    same parameters. If not `same_machine`, devices start empty.

    `rests` are functions that return the layouts of state between steps in `before` and in `after`.
    """
    tensors = list(_tensors(before, after, rests))
    had = before.plan.mesh.devices if same_machine else 0
    axes = {a for t in tensors for a in (*t.before.axes, *t.after.axes)}
    axes |= {p.mesh.axis(p.split.axis) for p in (before.plan, after.plan) if p.split}
    ranks, copies = representatives(axes, had, after.plan.mesh.devices)
    needed, lacking = {}, {}
    for rank in ranks:
        needed[rank], lacking[rank] = _of_rank(before, after, tensors, rank, rank < had)
    worst = max(ranks, key=lambda rank: lacking[rank])
    return ReshardingBytes(
        same_machine=same_machine,
        checkpoint_bytes=ELEMENT_BYTES * (before.model.parameters + moment_elements(before.plan)),
        needed_bytes=copies * sum(needed.values()),
        moved_bytes=copies * sum(lacking.values()),
        worst_device_bytes=lacking[worst],
        worst_device=worst,
    )


@dataclass(frozen=True)
class _Tensor:
    """The weights or the optimizer state of parameters of the same sections, with the layouts before and after. `times`
    counts the arrays with these layouts, such as two AdamW moments; `name` is one of the parameters."""

    name: str
    times: int
    before: StoredLayout
    after: StoredLayout


def _tensors(before: Sharded, after: Sharded, rests: tuple[StateLayout, StateLayout]) -> Iterator[_Tensor]:
    found: dict[tuple[object, ...], _Tensor] = {}
    for p in after.params:
        old = before.param[p.param.name]
        times_of: dict[Noun, int] = {"params": 1, "optimizer": moments_of(before.plan, p.param.name)}
        for noun, times in times_of.items():
            pair = (stored_layout(before, old, noun, rests[0]), stored_layout(after, p, noun, rests[1]))
            alike = (*pair, old.param.sections, p.param.sections)
            one = found.setdefault(alike, _Tensor(p.param.name, 0, *pair))
            found[alike] = replace(one, times=one.times + times)
    return iter(found.values())


def _of_rank(before: Sharded, after: Sharded, tensors: list[_Tensor], rank: int, had: bool) -> tuple[int, int]:
    """Return the bytes that `rank` needs under the new layout, and how many of these it receives. Without `had` it
    starts empty."""
    needed = lacking = 0
    for t in tensors:
        layers = layers_on_rank(after.plan, after.param[t.name].param, rank)
        piece = t.after.piece(rank)
        elements = _product(length(runs) for runs in piece)
        needed += len(layers) * elements * t.times
        lacking += len(layers) * elements * t.times
        if had:
            both = len(layers & layers_on_rank(before.plan, before.param[t.name].param, rank))
            lacking -= both * _overlap(t.before.piece(rank), piece) * t.times
    return needed * ELEMENT_BYTES, lacking * ELEMENT_BYTES


def _overlap(one: tuple[Runs, ...], other: tuple[Runs, ...]) -> int:
    return _product(shared(a, b) for a, b in zip(one, other, strict=True))


def _product(values: Iterable[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total


def representatives(axes: Iterable[Axis], had: int, devices: int) -> tuple[list[int], int]:
    """Return one rank for each distinct set of shards, and the number of devices (replicas) with each set.

    `axes` shard some tensor; `devices` is the number of ranks, of which the first `had` hold shards of the old layout.
    If the strides of `axes` do not nest, all ranks are returned.
    """
    spans = {(a.stride, a.stride * a.size) for a in axes if a.size > 1}
    spans |= {(had, devices)} if 0 < had < devices else set()
    borders = sorted({1, devices, *(edge for span in spans for edge in span if edge < devices)})
    if any(b % a for a, b in pairwise(borders)):
        return list(range(devices)), 1
    ranks, copies = [0], 1  # a rank is a number in mixed radix, with a digit between each pair of borders
    for low, high in pairwise(borders):
        if any(first <= low and high <= last for first, last in spans):
            ranks = [r + low * digit for digit in range(high // low) for r in ranks]
        else:
            copies *= high // low
    return ranks, copies
