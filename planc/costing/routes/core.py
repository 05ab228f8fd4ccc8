"""Shortest paths between the switches of a core: the switches that remain after the network is reduced.

Flows are routed target by target: each switch divides the incoming bytes equally over all links that lead one hop
nearer to the target. On a torus the coordinates determine these links; elsewhere a breadth-first search does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod

from planc.graph.symmetry import Symmetry

Arc = int
"""A direction of a cable: twice its index, plus one for the reverse direction."""
Amounts = dict[tuple[int, int], float]
"""Bytes from one vertex to another."""
FEW = 3
"""Number of sources per target up to which paths are cached, since other collectives use the same ones."""


class Bundle:
    """All parallel arcs (cables in one direction) from one vertex to another, and their number of links."""

    __slots__ = ("arcs", "links")

    def __init__(self, arcs: list[Arc], links: float) -> None:
        self.arcs, self.links = arcs, links


class SwitchCore:
    """The switches that remain after the network is reduced. A set of switches is an integer bitmask."""

    def __init__(self, near: Mapping[int, Mapping[int, Bundle]]) -> None:
        self._number = {v: i for i, v in enumerate(near)}
        self._near_sets = [sum(1 << self._number[u] for u in others) for others in near.values()]
        self._steps = [
            {1 << self._number[w]: (w, b.links, b.arcs[0]) for w, b in others.items()} for others in near.values()
        ]
        self._rings: dict[int, list[int]] = {}
        self._met: dict[int, int] = {}
        self._paths: dict[tuple[int, int], list[tuple[Arc, float]]] = {}

    def hops(self, u: int, v: int) -> float:
        """Return the number of hops (links) from `u` to `v`; infinity if there is no path."""
        if u not in self._number or v not in self._number:
            return float("inf")
        at = 1 << self._number[u]
        return next((float(n) for n, ring in enumerate(self._rings_round(v, at)) if ring & at), float("inf"))

    def _rings_round(self, target: int, wanted: int) -> list[int]:
        """Return the sets (bitmasks) of switches 0, 1, 2 ... hops from `target`, until they hold all of `wanted`."""
        rings = self._rings.setdefault(target, [1 << self._number[target]])
        if not wanted & ~self._met.get(target, rings[0]):
            return rings
        near, met, last = self._near_sets, self._met.get(target, rings[0]), rings[-1]
        while last and wanted & ~met:
            after = 0
            while last:
                lowest = last & -last
                after |= near[lowest.bit_length() - 1]
                last ^= lowest
            last = after & ~met
            met |= last
            rings.append(last)
        self._met[target] = met
        return rings

    def push(self, amounts: Mapping[tuple[int, int], float], loads: dict[Arc, float]) -> None:
        """Add to `loads` the bytes of the flows `amounts`, by (source, target), on the first arc of each bundle."""
        for target, sources in _by_target(amounts).items():
            if len(sources) > FEW:
                self._push(target, sources, loads)
                continue
            for u, amount in sources.items():
                for arc, share in self._paths.get((u, target)) or self._path(u, target):
                    loads[arc] += amount * share

    def _path(self, source: int, target: int) -> list[tuple[Arc, float]]:
        """Return the arcs of a flow from `source` to `target`, each with its share of the flow. A path without
        alternatives is reused for the opposite direction."""
        back = self._paths.get((target, source), ())
        if back and all(share == 1.0 for _, share in back):
            path = [(arc ^ 1, share) for arc, share in back]
        else:
            shares: dict[Arc, float] = defaultdict(float)
            self._push(target, {source: 1.0}, shares)
            path = [*shares.items()]
        self._paths[source, target] = path
        return path

    def _push(self, target: int, sources: Mapping[int, float], loads: dict[Arc, float]) -> None:
        """Add to `loads` the bytes of the flows from `sources` to `target`, on the first arc of each bundle."""
        number, near_sets, steps = self._number, self._near_sets, self._steps
        wanted = sum(1 << number[u] for u in sources)
        rings = self._rings_round(target, wanted)
        levels: list[dict[int, float]] = [{} for _ in rings]
        for u, amount in sources.items():
            bit = 1 << number[u]
            levels[next(n for n, ring in enumerate(rings) if ring & bit)][u] = amount
        for level in range(len(rings) - 1, 0, -1):
            ring, below = rings[level - 1], levels[level - 1]
            for u, amount in levels[level].items():
                i = number[u]
                left, ahead = near_sets[i] & ring, []
                while left:
                    lowest = left & -left
                    ahead.append(steps[i][lowest])
                    left ^= lowest
                total = sum(links for _, links, _ in ahead)
                for w, links, first in ahead:
                    part = amount * links / total
                    loads[first] += part
                    below[w] = below.get(w, 0.0) + part


def _by_target(amounts: Mapping[tuple[int, int], float]) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for (u, v), amount in amounts.items():
        found[v][u] = amount
    return found


Hop = tuple[int, float]
"""A hop on the path to a target: its key relative to the target, and bytes."""


class GridArcs(dict[int, Arc]):
    """The arcs of a grid by key, computed on first use.

    A key encodes the start of the arc and its direction along a dim. Coordinates are digits in base twice the dim's
    length, so that the keys of a target and of a hop relative to it can be added without overflow.
    """

    def __init__(self, lengths: Sequence[int], arc: Callable[[Sequence[int], int, int], Arc]) -> None:
        super().__init__()
        self._lengths, self._arc = lengths, arc
        self._first = 2 * len(lengths)
        self._strides = [self._first * prod(2 * n for n in lengths[:d]) for d in range(len(lengths))]

    def key(self, place: Sequence[int], d: int = 0, step: int = -1) -> int:
        """Return the key of the arc from the switch at `place` along dim `d`, up (`step` 1) or down (-1)."""
        return sum(map(int.__mul__, place, self._strides)) + 2 * d + (step > 0)

    def __missing__(self, key: int) -> Arc:
        at, way = divmod(key, self._first)
        place = []
        for n in self._lengths:
            at, x = divmod(at, 2 * n)
            place.append(x % n)
        found = self[key] = self._arc(place, way // 2, 1 if way % 2 else -1)
        return found


class Grid:
    """The switches of a torus, with a link between neighbours along every dim.

    Paths depend only on relative positions. They are computed once for all targets with the same relative sources.
    """

    def __init__(self, near: Mapping[int, Mapping[int, Bundle]], symmetry: Symmetry) -> None:
        self._near = near
        self._digits = [(digit.size, digit.exchange == "round") for digit in symmetry.digits]
        self._place = {v: symmetry.addresses[v][1] for v in near}
        self._at = {place: v for v, place in self._place.items()}
        self._patterns: dict[frozenset[tuple[tuple[int, ...], float]], list[Hop]] = {}
        self._arcs = GridArcs([n for n, _ in self._digits], self._arc)

    def hops(self, u: int, v: int) -> float:
        """Return the number of hops (links) from `u` to `v`."""
        return float(self._distance(self._apart(u, self._place[v])))

    def _apart(self, u: int, target: Sequence[int]) -> tuple[int, ...]:
        """Return the position of switch `u` relative to `target`: steps up around a ring, signed steps on a line."""
        there = zip(self._place[u], target, self._digits, strict=True)
        return tuple((a - b) % n if round_ else a - b for a, b, (n, round_) in there)

    def _distance(self, apart: Sequence[int]) -> int:
        each = zip(apart, self._digits, strict=True)
        return sum(min(x, n - x) if round_ else abs(x) for x, (n, round_) in each)

    def push(self, amounts: Mapping[tuple[int, int], float], loads: dict[Arc, float]) -> None:
        """Add to `loads` the bytes of the flows `amounts` on each arc."""
        arcs = self._arcs
        for target, sources in _by_target(amounts).items():
            place = self._place[target]
            seen = frozenset((self._apart(u, place), amount) for u, amount in sources.items())
            if (hops := self._patterns.get(seen)) is None:
                hops = self._patterns[seen] = self._hops_of(dict(seen))
            start = arcs.key(place)
            for key, amount in hops:
                loads[arcs[start + key]] += amount

    def _arc(self, place: Sequence[int], d: int, step: int) -> Arc:
        """The arc from the switch at `place` to its neighbour along dim `d`."""
        there = (*place[:d], (place[d] + step) % self._digits[d][0], *place[d + 1 :])
        return self._near[self._at[(*place,)]][self._at[there]].arcs[0]

    def _hops_of(self, sources: Mapping[tuple[int, ...], float]) -> list[Hop]:
        """Return the hops that flows from `sources` to a target take, those farthest from the target first."""
        levels: dict[int, dict[tuple[int, ...], float]] = defaultdict(dict)
        for apart, amount in sources.items():
            levels[self._distance(apart)][apart] = amount
        hops: list[Hop] = []
        key = self._arcs.key
        for level in range(max(levels), 0, -1):
            below = levels[level - 1]
            for apart, amount in levels.pop(level, {}).items():
                steps = [*self._steps(apart)]
                part = amount / len(steps)
                for d, step in steps:
                    hops.append((key(apart, d, step), part))
                    n, round_ = self._digits[d]
                    after = (apart[d] + step) % n if round_ else apart[d] + step
                    there = (*apart[:d], after, *apart[d + 1 :])
                    below[there] = below.get(there, 0.0) + part
        return hops

    def _steps(self, apart: Sequence[int]) -> list[tuple[int, int]]:
        """Return the dims and directions that lead closer to the target. Half way around a ring, both directions do."""
        found = []
        for d, (x, (n, round_)) in enumerate(zip(apart, self._digits, strict=True)):
            if not x:
                continue
            if 2 * x <= n if round_ else x > 0:
                found.append((d, -1))
            if (n > 2 and 2 * x >= n) if round_ else x < 0:  # in a ring of two, up and down are one link
                found.append((d, 1))
        return found


def core_of(near: Mapping[int, Mapping[int, Bundle]], symmetry: Symmetry | None) -> SwitchCore | Grid:
    """Return the switches with neighbours `near`: a Grid if they are a torus by `symmetry`, else a SwitchCore."""
    digits = symmetry.digits if symmetry is not None else ()
    joined = all(d.size == 1 or d.exchange in ("round", "line") for d in digits)
    if symmetry is not None and joined and len(near) == prod(d.size for d in digits):
        return Grid(near, symmetry)
    return SwitchCore(near)
