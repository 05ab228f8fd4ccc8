"""Collectives on a torus, every dim of which is a ring or a line of links.

Messages are routed in the order of the dims, so the lines of one dim are independent. A gather over several dims uses
every order of the dims at once, each for a part of the buffer. The parts are sized so that all dims finish together if
possible (Chan et al. 2007).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, pairwise, permutations, product
from math import inf, prod

from planc.diag.fast_dataclass import dataclass
from planc.graph.links import MachineLinks

Loads = dict[tuple[int, int], float]
"""Bytes on the link from a position along a dim in direction +1 or -1, on one line."""


@dataclass(frozen=True)
class TorusLine:
    """One dim of a torus: its length, whether it is a ring, and the slowest link at each position and direction."""

    length: int
    wrapped: bool
    rates: dict[tuple[int, int], float]
    latency_s: float
    names: dict[tuple[int, int], str]

    def seconds(self, loads: Loads) -> tuple[float, str]:
        """Return the seconds of the busiest link under `loads`, and its name."""
        each = ((amount / self.rates[at], self.names[at]) for at, amount in loads.items() if amount)
        return max(each, default=(0.0, ""))


def torus_lines(links: MachineLinks) -> tuple[TorusLine, ...]:
    """Return the dims of the torus of `links`, with the slowest link of all lines of the dim at each position."""
    rates: list[dict[tuple[int, int], float]] = [{} for _ in links.shape]
    names: list[dict[tuple[int, int], str]] = [{} for _ in links.shape]
    latency_s = 0.0
    for cable in links.cables:
        one, other = links.vertices[cable.source], links.vertices[cable.target]
        if not (one.place and other.place):
            continue
        latency_s = max(latency_s, links.kinds[cable.kind].latency_s)
        dim = next(d for d, (a, b) in enumerate(zip(one.place, other.place, strict=True)) if a != b)
        there, back = links.bytes_per_s(cable)
        here, beyond = one.place[dim], other.place[dim]
        ways = [((here, 1), there), ((beyond, -1), back)]
        if links.wrap[dim] and links.shape[dim] == 2:  # the cable's other half closes the ring
            ways = [(at, rate / 2) for at, rate in (*ways, ((beyond, 1), back), ((here, -1), there))]
        for at, rate in ways:
            if rate < rates[dim].get(at, inf):
                rates[dim][at], names[dim][at] = rate, links.cable_name(cable)
    return tuple(
        TorusLine(n, wrapped, rates[d], latency_s, names[d])
        for d, (n, wrapped) in enumerate(zip(links.shape, links.wrap, strict=True))
    )


def groups_on_line(length: int, offsets: Sequence[int]) -> list[list[int]]:
    """Return the positions (in hops) of every group along a line: the first is at `offsets`, the others are shifted.

    >>> groups_on_line(8, [0, 2])
    [[0, 2], [1, 3], [4, 6], [5, 7]]
    """
    taken: set[int] = set()
    found = []
    for start in range(length):
        if start not in taken:
            group = [(start + o) % length for o in offsets]
            taken.update(group)
            found.append(group)
    return found


def gather_loads(line: TorusLine, groups: Sequence[Sequence[int]]) -> Loads:
    """Return the loads of a gather in which every member of `groups` passes one byte to the next.

    A ring sends half in each direction; on a line both directions carry all, since each end lacks the other's data.
    """
    loads: Loads = defaultdict(float)
    for group in groups:
        closed = line.wrapped and _goes_round(line.length, group)
        pairs = [*pairwise(group)]
        for a, b in [*pairs, (group[-1], group[0])] if closed else pairs:
            _carry(line, a, b, 1, 0.5 if closed else 1.0, loads)
            _carry(line, b, a, -1, 0.5 if closed else 1.0, loads)
    return loads


def _goes_round(length: int, group: Sequence[int]) -> bool:
    """True if the members are evenly spaced around the whole ring."""
    step = length // len(group)
    return step * len(group) == length and all((b - a) % length == step for a, b in pairwise(group))


def exchange_loads(line: TorusLine, groups: Sequence[Sequence[int]]) -> Loads:
    """Return the loads of an all-to-all of one byte per pair in `groups`, shared by equally short paths."""
    loads: Loads = defaultdict(float)
    for group in groups:
        for a, b in product(group, group):
            for way, share in _directions(line, a, b):
                _carry(line, a, b, way, share, loads)
    return loads


def send_loads(line: TorusLine, groups: Sequence[Sequence[int]]) -> Loads:
    """Return the loads when every member of `groups` but the last sends one byte to the next, in one direction."""
    loads: Loads = defaultdict(float)
    for group in groups:
        for a, b in pairwise(group):
            _carry(line, a, b, _directions(line, a, b)[0][0], 1.0, loads)
    return loads


def _directions(line: TorusLine, a: int, b: int) -> list[tuple[int, float]]:
    """Return the directions of the shortest path from `a` to `b`, each with its share of the data."""
    if a == b:
        return []
    if not line.wrapped:
        return [(1 if b > a else -1, 1.0)]
    ahead = (b - a) % line.length
    if 2 * ahead == line.length:
        return [(1, 0.5), (-1, 0.5)]
    return [(1 if 2 * ahead < line.length else -1, 1.0)]


def _carry(line: TorusLine, a: int, b: int, direction: int, amount: float, loads: Loads) -> None:
    while a != b:
        loads[a, direction] += amount
        a = (a + direction) % line.length


def gather_s(sizes: Sequence[int], each_s: Sequence[float]) -> float:
    """Return the seconds to gather one byte in total over torus dims of `sizes`, with the best mix of orders of dims.

    `each_s` holds the seconds in which each dim transfers one byte per member. The first dim of an order carries the
    least data. The fastest mix is a vertex of a linear program, found by enumerating all vertices.

    >>> gather_s([4, 4], [1.0, 1.0])  # half of 15/16 along each
    0.46875
    """
    whole = prod(sizes)
    orders = []
    for order in permutations(range(len(sizes))):
        moved, done = [0.0] * len(sizes), 1
        for d in order:
            moved[d] = done * (sizes[d] - 1) / whole * each_s[d]
            done *= sizes[d]
        orders.append(moved)
    best = min(max(moved) for moved in orders)
    for count in range(2, len(sizes) + 1):
        for chosen in combinations(orders, count):
            for tight in combinations(range(len(sizes)), count):
                best = min(best, _corner(chosen, tight))
    return best


def _corner(orders: Sequence[Sequence[float]], tight: Sequence[int]) -> float:
    """Return the seconds of the mix of orders in which the dims in `tight` finish together; infinity if none does."""
    n = len(orders)
    rows = [[*(o[d] for o in orders), -1.0, 0.0] for d in tight] + [[1.0] * n + [0.0, 1.0]]
    solved = _solved(rows)
    if solved is None or min(solved[:n]) < -1e-12:
        return inf
    return max(sum(w * o[d] for w, o in zip(solved, orders, strict=False)) for d in range(len(orders[0])))


def _solved(rows: list[list[float]]) -> list[float] | None:
    """Return the solution of linear equations (rows of coefficients and right-hand side); None if it is not unique."""
    n = len(rows)
    for i in range(n):
        best = max(range(i, n), key=lambda r: abs(rows[r][i]))
        if abs(rows[best][i]) < 1e-14:
            return None
        rows[i], rows[best] = rows[best], rows[i]
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]
