"""Transfers between drawn layouts: every rank ends with the slice that it wants, and nothing moves twice."""

from __future__ import annotations

from collections import Counter
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from planc.sharding.transfer_core import MeshAxis, RankRange, TensorLayout, cells, hops, rotation_of, runs_of
from tests.sharding.masks import mask

PAIRS, AT_ONCE = 400, 40


class Pair(NamedTuple):
    """Two layouts of a tensor and the ranks that have them."""

    source: TensorLayout
    target: TensorLayout
    sides: tuple[RankRange, RankRange]
    colocated: bool


def _mesh(draw: Random, devices: int) -> list[MeshAxis]:
    """Axes of a mesh of so many devices, outermost first."""
    found, stride = list[MeshAxis](), devices
    while stride > 1:
        size = draw.choice([n for n in range(2, stride + 1) if stride % n == 0])
        stride //= size
        found.append((stride, size))
    return found


def _held(draw: Random, lengths: tuple[tuple[int, ...], ...], devices: int, *, stored: bool) -> TensorLayout:
    axes = _mesh(draw, devices)
    draw.shuffle(axes)
    stage = (1, 1)
    stages: tuple[int, ...] = (0,)
    if axes and draw.random() < 0.3:
        stage = axes.pop()
        stages = tuple(sorted(draw.sample(range(stage[1]), draw.choice([1, 1, stage[1]]))))
    used = []
    for dims in lengths:
        named = []
        for i, n in enumerate(dims):
            own = tuple(axes.pop() for _ in range(draw.choice([0, 0, 1, 1, 2])) if axes)
            named.append((n, prod(dims[i + 1 :]), own))
        used.append(tuple(named))
    if not stored or not axes or draw.random() < 0.3:
        return TensorLayout(tuple(used), (), -1, stage, stages)
    return TensorLayout(tuple(used), tuple(axes[: draw.choice([1, 2])]), draw.randrange(len(lengths)), stage, stages)


def drawn(seed: int, most: int = 12) -> Pair:
    """The pair of a seed, whose sides have up to `most` ranks."""
    draw = Random(seed)
    lengths = tuple(
        tuple(draw.randint(1, 9) for _ in range(draw.choice([1, 1, 2]))) for _ in range(draw.choice([1, 2, 3]))
    )
    devices, colocated = draw.choice([n for n in (1, 2, 4, 6, 8, 12, 16, 24) if n <= most]), draw.random() < 0.5
    others = devices if colocated else draw.choice([1, 2, 3, 4, 8])
    one = RankRange(0, devices, draw.choice([1, 2, 4, devices]))
    other = one if colocated else RankRange(devices, others, draw.choice([1, 2, others]))
    source, target = (_held(draw, lengths, n, stored=s) for n, s in ((devices, True), (others, False)))
    return Pair(source, target, (one, other), colocated)


@pytest.mark.parametrize("first", range(0, PAIRS, AT_ONCE))
def test_every_rank_gets_its_slice_and_nothing_twice(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        pair = drawn(seed)
        _moved(pair, rotation=seed)


def _moved(pair: Pair, rotation: int) -> None:
    one, other = pair.sides
    values = np.arange(1.0, 1 + prod(mask(pair.source, 0).shape)).reshape(mask(pair.source, 0).shape)
    have = {one.first + r: np.where(mask(pair.source, r), values, 0) for r in range(one.devices)}
    want = {other.first + r: mask(pair.target, r) for r in range(other.devices)}
    got = {rank: have[rank].copy() if pair.colocated else np.zeros_like(values) for rank in want}
    missing_ranks = {rank: w & (got[rank] == 0) for rank, w in want.items()}
    received = {rank: np.zeros(values.shape, int) for rank in want}
    crossed: dict[int, Any] = {}
    for index, (box, holders, wanters) in enumerate(cells(pair.source, pair.target, pair.sides)):
        at = tuple(slice(a, b) for a, b in box)
        came = set[int]()
        for hop in hops(box, holders, wanters, rotation_of(rotation, 0, index), pair.sides, pair.colocated):
            assert (hop.depth == 1) == (hop.sender not in came) and hop.receiver not in came
            held = have[hop.sender] if hop.depth == 1 else got[hop.sender]
            assert (held[at] > 0).all(), "a rank sends what it has"
            got[hop.receiver][at] = held[at]
            received[hop.receiver][at] += 1
            came.add(hop.receiver)
            if side_of(hop.sender, pair).node(hop.sender) != other.node(hop.receiver):
                node = crossed.setdefault(other.node(hop.receiver), np.zeros(values.shape, int))
                node[at] += 1
    for rank, w in want.items():
        assert np.array_equal(np.where(w, got[rank], 0), np.where(w, values, 0)), "each rank has its slice"
        assert np.array_equal(received[rank], missing_ranks[rank].astype(int)), "what a rank lacks comes once, no more"
    for node, count in crossed.items():
        ranks = [r for r in want if other.node(r) == node]
        here = [m for r, m in have.items() if pair.colocated and one.node(r) == node]
        lacks = np.any([missing_ranks[r] for r in ranks], axis=0)
        near = np.any([h > 0 for h in here], axis=0) if here else np.zeros(values.shape, bool)
        assert np.array_equal(count, (lacks & ~near).astype(int)), "an element enters a node at most once"


def side_of(rank: int, pair: Pair) -> RankRange:
    """The side that has a global rank."""
    return pair.sides[0] if rank < pair.sides[0].devices else pair.sides[1]


def test_the_runs_are_those_of_the_masks() -> None:
    for seed in range(PAIRS):
        pair = drawn(seed)
        for held, side in ((pair.source, pair.sides[0]), (pair.target, pair.sides[1])):
            for rank in range(side.devices):
                stride, size = held.stage
                if rank // stride % size not in held.stages:
                    continue
                found = [
                    np.concatenate([np.arange(*run) for run in runs_of(held, dim, rank)] or [np.arange(0)])
                    for dim in range(len(held.used))
                ]
                assert np.array_equal(
                    np.argwhere(mask(held, rank)),
                    np.array(np.meshgrid(*found, indexing="ij")).reshape(len(found), -1).T,
                )


def test_the_draw_has_every_kind() -> None:
    """Strided intervals, uneven and empty shards, pipelines, replicas, several nodes, and both kinds of pair."""
    seen = Counter[str]()
    for seed in range(PAIRS):
        pair = drawn(seed)
        runs = [
            runs_of(pair.source, dim, rank)
            for dim in range(len(pair.source.used))
            for rank in range(pair.sides[0].devices)
        ]
        seen["strided"] += any(len(r) > 1 for r in runs)
        seen["empty"] += any(not r for r in runs)
        seen["pipeline"] += pair.source.stage[1] > 1 or pair.target.stage[1] > 1
        seen["nodes"] += pair.sides[1].devices > pair.sides[1].per_node
        seen["colocated" if pair.colocated else "apart"] += 1
        seen["replicas"] += any(len(h) > 1 for _, h, _ in cells(*pair[:3]))
    assert min(seen.values()) >= 20 and len(seen) == 7, seen
