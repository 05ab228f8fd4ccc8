"""The bytes of a checkpoint that devices receive when a run resumes with another layout.

A checkpoint holds each parameter and its two AdamW moments in fp32. On the same machine, rank i of plan A becomes rank
i of plan B: it receives only the elements of its shards under B that it did not hold under A.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise, takewhile

from planc.diag.fast_dataclass import dataclass
from planc.ir.backend import StateLayout
from planc.ir.mesh import Axis
from planc.ir.plan import Noun
from planc.ir.sharding import Sharded
from planc.ir.updates import moment_elements, moments_of
from planc.sharding.shard_intervals import StoredLayout, layers_on_rank, length, shared, stored_layout
from planc.sharding.transfers import CHECKPOINT_BYTES


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
    had, devices = before.plan.mesh.devices if same_machine else 0, after.plan.mesh.devices
    stages = {p.mesh.axis(p.split.axis) for p in (before.plan, after.plan) if p.split}
    digits = digits_of({*stages, *(a for t in tensors for a in t.axes)}, had, devices)
    needed = moved = 0
    missing: dict[Digits, dict[int, int]] = {}
    for t in tensors:
        own = digits_on(digits, {*t.axes, *stages}, had, devices)
        of_rank = missing.setdefault(own, {})
        copies = devices // _product(high // low for low, high in own)
        arrays: dict[tuple[int, ...], tuple[int, int]] = {}
        for rank in holders(own, t.after.holders):
            place = (rank < had, *[stage.place_of(rank) for stage in stages])
            if place not in arrays:
                arrays[place] = _arrays(before, after, t, rank, rank < had)
            needs, lacks = _of_rank(t, rank, *arrays[place])
            needed += copies * needs
            moved += copies * lacks
            of_rank[rank] = of_rank.get(rank, 0) + lacks
    worst_device, worst_device_bytes = _most_missing(digits, missing)
    return ReshardingBytes(
        same_machine=same_machine,
        checkpoint_bytes=CHECKPOINT_BYTES * (before.model.parameters + moment_elements(before.plan)),
        needed_bytes=needed,
        moved_bytes=moved,
        worst_device_bytes=worst_device_bytes,
        worst_device=worst_device,
    )


@dataclass(frozen=True)
class _Tensor:
    """The weights or the optimizer state of parameters with the same layouts before and after. `times` counts the
    arrays of these layouts in each set of sections, such as two AdamW moments; its keys are a parameter of them."""

    times: dict[str, int]
    before: StoredLayout
    after: StoredLayout

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.before.axes, *self.after.axes)

    @cached_property
    def cut(self) -> tuple[list[int], int]:
        """The storage dimensions that axes shard before or after, and the product of the lengths of the others."""
        dims = range(len(self.after.used))
        cut = [dim for dim in dims if self.before.axes_of[dim] or self.after.axes_of[dim]]
        return cut, _product(length(self.after.on_dim_of(dim, 0)) for dim in dims if dim not in cut)


def _tensors(before: Sharded, after: Sharded, rests: tuple[StateLayout, StateLayout]) -> Iterator[_Tensor]:
    found: dict[tuple[StoredLayout, StoredLayout], dict[tuple[object, ...], tuple[str, int]]] = {}
    for p in after.params:
        old = before.param[p.param.name]
        times_of: dict[Noun, int] = {"params": 1, "optimizer": moments_of(before.plan, p.param.name)}
        for noun, times in times_of.items():
            pair = (stored_layout(before, old, noun, rests[0]), stored_layout(after, p, noun, rests[1]))
            by_sections, sections = found.setdefault(pair, {}), (old.param.sections, p.param.sections)
            name, so_far = by_sections.get(sections, (p.param.name, 0))
            by_sections[sections] = (name, so_far + times)
    return (_Tensor(dict(by_sections.values()), *pair) for pair, by_sections in found.items())


def _arrays(before: Sharded, after: Sharded, t: _Tensor, rank: int, had: bool) -> tuple[int, int]:
    """Return the number of arrays of `t` on the new stage of `rank`, and of those that its old stage has too."""
    arrays = both = 0
    for name, times in t.times.items():
        layers = layers_on_rank(after.plan, after.param[name].param, rank)
        arrays += times * len(layers)
        both += times * len(layers & layers_on_rank(before.plan, before.param[name].param, rank)) if had else 0
    return arrays, both


def _of_rank(t: _Tensor, rank: int, arrays: int, both: int) -> tuple[int, int]:
    """Return the bytes of `t` that `rank` needs under the new layout, and how many of these it receives: all but its
    old part of `both` of the `arrays`."""
    cut, whole = t.cut
    needed, common = arrays * whole, both * whole
    for dim in cut if arrays else ():
        runs = t.after.on_dim_of(dim, rank)
        needed *= length(runs)
        common *= shared(t.before.on_dim_of(dim, rank), runs) if common else 0
    return needed * CHECKPOINT_BYTES, (needed - common) * CHECKPOINT_BYTES


def _product(values: Iterable[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total


# Ranks as numbers in mixed radix. Devices that differ in digits which no layout depends on hold the same.

Digits = tuple[tuple[int, int], ...]
"""The weight of each digit and the weight of the next, ascending."""


def digits_of(axes: Iterable[Axis], had: int, devices: int) -> Digits:
    """Return digits of the numbers below `devices`, of which `axes` and the border at `had` take whole ones; one digit
    for all if the strides of `axes` do not nest."""
    borders = sorted({1, devices, *(edge for span in _spans(axes, had, devices) for edge in span if edge < devices)})
    found = tuple(pairwise(borders))
    return ((1, devices),) if any(high % low for low, high in found) else found


def digits_on(digits: Digits, axes: Iterable[Axis], had: int, devices: int) -> Digits:
    """Return those of `digits` that determine a rank's place along `axes`, and whether it is below `had`."""
    spans = _spans(axes, had, devices)
    return tuple((low, high) for low, high in digits if any(first < high and low < last for first, last in spans))


def _spans(axes: Iterable[Axis], had: int, devices: int) -> set[tuple[int, int]]:
    spans = {(a.stride, a.stride * a.size) for a in axes if a.size > 1}
    return spans | ({(had, devices)} if 0 < had < devices else set())


def holders(digits: Digits, most: Mapping[Axis, int]) -> list[int]:
    """Return the ranks of these `digits` whose place along each axis is below `most` of that axis."""
    limits = [(a.stride, a.size, n) for a, n in most.items() if n < a.size]

    def holds(rank: int) -> bool:
        return all(rank // stride % size < n for stride, size, n in limits)

    # A place along an axis grows with each of its digits, unless one digit stands for all.
    chosen = takewhile if len(digits) > 1 else filter
    ranks = [0]
    for low, high in reversed(digits):
        ranks = [rank for first in ranks for rank in chosen(holds, range(first, first + high, low))]
    return ranks


def _most_missing(digits: Digits, missing: Mapping[Digits, Mapping[int, int]]) -> tuple[int, int]:
    """Return the first device with the most bytes, and these, as sums of what is `missing` by digits."""
    used = {digit for own, of_rank in missing.items() if any(of_rank.values()) for digit in own}
    total = {0: 0}
    for own, of_rank in missing.items():
        others = holders(tuple(d for d in digits if d in used and d not in own), {})
        for rank, lacks in of_rank.items():
            for other in others if lacks else ():
                total[rank + other] = total.get(rank + other, 0) + lacks
    return min(total.items(), key=lambda one: (-one[1], one[0]))
