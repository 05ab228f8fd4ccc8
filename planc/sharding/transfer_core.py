"""Transfers of tensors between two layouts: what each rank holds, and the hops by which the missing parts travel.

Standard library alone, and plain tuples: the programs that planc emits carry this module as it stands, so a program
moves what planc predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

Run = tuple[int, int]
"""A half-open interval of indices: (first, one past the last)."""
MeshAxis = tuple[int, int]
"""A mesh axis: (distance in ranks between neighbours, size)."""
Box = tuple[Run, ...]
"""One interval of indices a dim."""


class TensorLayout(NamedTuple):
    """How one tensor lies on the ranks of a side.

    For each dim `used` has the named dims in it, as (length, elements inside one index, axes that shard it); `stored`
    are the axes that shard the result further, along dim `on_dim` (-1: none). `stages` are the coordinates along the
    pipeline axis `stage` that have the tensor; without a pipeline the axis has size 1.
    """

    used: tuple[tuple[tuple[int, int, tuple[MeshAxis, ...]], ...], ...]
    stored: tuple[MeshAxis, ...] = ()
    on_dim: int = -1
    stage: MeshAxis = (1, 1)
    stages: tuple[int, ...] = (0,)


class RankRange(NamedTuple):
    """The ranks of one side: the first global rank, how many there are, and how many share a node."""

    first: int
    devices: int
    per_node: int

    def node(self, rank: int) -> int:
        """Return the first global rank of the node of `rank`."""
        return self.first + (rank - self.first) // self.per_node * self.per_node


class TensorTransfer(NamedTuple):
    """The tensors of one parameter that move alike: those of its `layers` (-1 of the ends), for which `*` stands in its
    name. `number` is where its turns begin (`rotation_of`)."""

    name: str
    number: int
    layers: tuple[int, ...]
    source: TensorLayout
    target: TensorLayout


class Hop(NamedTuple):
    """One message: `box` of a tensor travels from global rank `sender` to `receiver`. Hops of a larger `depth` pass on
    what hops of a smaller one brought."""

    sender: int
    receiver: int
    box: Box
    depth: int


def shape_of(held: TensorLayout) -> tuple[int, ...]:
    """Return the shape of the whole tensor of which `held` says the layout, in elements."""
    return tuple(prod(length for length, _, _ in dims) for dims in held.used)


def shard_range(length: int, axes: Sequence[MeshAxis], rank: int) -> Run:
    """Return the interval of range(`length`) that `rank` holds; `axes` split it one after the other, as torch.chunk."""
    first, last = 0, length
    for stride, size in axes:
        each = -(-(last - first) // size)
        at = rank // stride % size
        first, last = min(last, first + each * at), min(last, first + each * (at + 1))
    return first, last


def stored_range(length: int, axes: Sequence[MeshAxis], rank: int) -> Run:
    """Return the interval of range(`length`) that `rank` stores. `axes` split it together, as one axis of all their
    ranks: 134 rows over 2 x 2 ranks are 34, 34, 34 and 32."""
    ranks, at = 1, 0
    for stride, size in axes:
        ranks, at = ranks * size, at * size + rank // stride % size
    each = -(-length // ranks)
    return min(length, each * at), min(length, each * (at + 1))


def repeat_within(runs: Sequence[Run], length: int, inside: int, part: Run) -> tuple[Run, ...]:
    """Return the elements of `runs` whose index along one dim is in the interval `part`. The dim has `length` indices
    of `inside` elements each."""
    block = length * inside
    return tuple(
        (start + part[0] * inside, start + part[1] * inside)
        for a, b in runs
        for start in range(a, b, block)
        if part[0] < part[1]
    )


def subrange(runs: Sequence[Run], first: int, last: int) -> tuple[Run, ...]:
    """Return the indices at positions `first` to `last` (exclusive) of the concatenated intervals `runs`."""
    found, passed = [], 0
    for a, b in runs:
        start, stop = max(first - passed, 0), min(last - passed, b - a)
        if start < stop:
            found.append((a + start, a + stop))
        passed += b - a
    return tuple(found)


def runs_of(held: TensorLayout, dim: int, rank: int) -> tuple[Run, ...]:
    """Return the intervals of dim `dim` that the side's rank `rank` (from 0) holds, adjacent ones joined."""
    runs: tuple[Run, ...] = ((0, prod(length for length, _, _ in held.used[dim])),)
    for length, inside, axes in held.used[dim]:
        if axes:
            runs = repeat_within(runs, length, inside, shard_range(length, axes, rank))
    if dim == held.on_dim:
        runs = subrange(runs, *stored_range(sum(b - a for a, b in runs), held.stored, rank))
    return _joined(runs)


def _joined(runs: Sequence[Run]) -> tuple[Run, ...]:
    found: list[Run] = []
    for a, b in runs:
        if found and found[-1][1] == a:
            found[-1] = (found[-1][0], b)
        elif a < b:
            found.append((a, b))
    return tuple(found)


def axes_of_dim(held: TensorLayout, dim: int) -> tuple[MeshAxis, ...]:
    """Return the axes that determine which part of dim `dim` a rank holds."""
    inside = [axis for _, _, axes in held.used[dim] for axis in axes]
    return (*inside, *(held.stored if dim == held.on_dim else ()))


@lru_cache(maxsize=4096)
def parts_of(held: TensorLayout, side: RankRange) -> tuple[tuple[Box, tuple[int, ...]], ...]:
    """Return every distinct part of the tensor on a side: its boxes' index ranges by dim, and the ranks that hold it.

    A part is one box; a rank with strided intervals holds several parts.
    """
    dims = range(len(held.used))
    known: list[dict[tuple[int, ...], tuple[Run, ...]]] = [{} for _ in dims]
    axes = [axes_of_dim(held, dim) for dim in dims]
    holders: dict[Box, list[int]] = {}
    stride, size = held.stage
    for rank in range(side.devices):
        if rank // stride % size not in held.stages:
            continue
        runs = []
        for dim in dims:
            at = tuple(rank // s % n for s, n in axes[dim])
            if (own := known[dim].get(at)) is None:
                own = known[dim][at] = runs_of(held, dim, rank)
            runs.append(own)
        for box in product(*runs):
            holders.setdefault(box, []).append(side.first + rank)
    return tuple((box, tuple(ranks)) for box, ranks in holders.items())


def cells(
    source: TensorLayout, target: TensorLayout, sides: tuple[RankRange, RankRange]
) -> Iterator[tuple[Box, tuple[int, ...], tuple[int, ...]]]:
    """Yield each intersection of a part of the source with one of the target: its box, the ranks that hold it, and
    those that want it."""
    yield from crossings(parts_of(source, sides[0]), parts_of(target, sides[1]))


def crossings(have: Iterable[tuple[Box, Any]], want: Iterable[tuple[Box, Any]]) -> Iterator[tuple[Box, Any, Any]]:
    """Yield each intersection of a box of `have` with one of `want`, and what stands beside either: the ranks of a
    part, or the file of a checkpoint's box. Boxes have one dim at least."""
    by_first: dict[Run, list[tuple[Box, Any]]] = {}
    for part in have:
        by_first.setdefault(part[0][0], []).append(part)
    firsts = sorted(by_first)
    for wanted, wanters in want:
        for run in firsts:
            if run[0] >= wanted[0][1]:
                break
            if run[1] <= wanted[0][0]:
                continue
            for box, holders in by_first[run]:
                both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted, strict=True))
                if all(a < b for a, b in both):
                    yield both, holders, wanters


def rotation_of(number: int, layer: int, cell: int) -> int:
    """Return the turn of a cell: the number of its parameter, its `layer` (-1 of the ends) and the number of the `cell`
    together, so that neighbours in any of the three differ by one."""
    return number + layer + 1 + cell


def hops(
    box: Box,
    holders: Sequence[int],
    wanters: Sequence[int],
    rotation: int,
    sides: tuple[RankRange, RankRange],
    colocated: bool,
) -> Iterator[Hop]:
    """Yield the hops of one cell, senders before receivers.

    A node of wanters that has a holder takes the cell from it. Each other node receives it once, at one of its wanters,
    which passes it on inside the node and to one wanter of the next node. `rotation` chooses among equal ranks:
    cells and layers take them in turn, so that links carry equal shares.
    """
    there = set(holders) if colocated else set()
    missing: dict[int, list[int]] = {}
    for rank in wanters:
        if rank not in there:
            missing.setdefault(sides[1].node(rank), []).append(rank)
    near: dict[int, list[int]] = {}
    if colocated:
        for rank in holders:
            if (node := sides[1].node(rank)) in missing:
                near.setdefault(node, []).append(rank)
    sender, depth = holders[rotation % len(holders)], 1
    around = sorted(missing, key=lambda node: (node < sender, node))
    for node in around:
        ranks = missing[node]
        if node in near:
            for index, rank in enumerate(ranks):
                yield Hop(near[node][(rotation + index) % len(near[node])], rank, box, 1)
            continue
        lead = ranks[rotation % len(ranks)]
        yield Hop(sender, lead, box, depth)
        yield from (Hop(lead, rank, box, depth + 1) for rank in ranks if rank != lead)
        sender, depth = lead, depth + 1
