"""The order of a plan's mesh axes that is fastest on its machine, beside today's: `planc.place/1`.

Each order's collectives are costed as those of a plan with that mesh. An order in which none is faster than in another
one is left out: more seconds of communication never make a step faster. On a machine that is written as a graph they
do where other links are busy: there an order is left out if it, or one in which no collective is slower, takes as long
as the best one known even with no link in common to two collectives. The steps of the others are timed, and the best
one is checked and costed as a plan of its own, for its target may refuse it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

from planc.checks import check_plan
from planc.costing import CostedPlan, cost_plan, device_group
from planc.costing.machine.axis_orders import axis_orders, moving_axes, row_seconds
from planc.costing.step.step_time import step_time
from planc.costing.step.transfers import LinkTimes
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import Collective
from planc.ir.mesh import Mesh
from planc.ir.plan import Plan
from planc.ir.target import Target
from planc.sharding.propagate import propagate

FORMAT = "planc.place/1"
MOST_AXES = 7
"""Axes of more than one rank at most: 5,040 orders."""
SAME = 1e-12
"""Relative difference below which two numbers of seconds are the same."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One order of the axes, and the step in it."""

    mesh: str
    step_s: float
    collectives_s: float
    """Seconds of all collectives of the slowest rank, exposed or not."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The part of the machine that the groups of some axes cross."""

    level: str
    """The outermost level of the network; on a graph of links its busiest link."""
    nodes: float
    """Nodes (or slices of a torus) that one group lies in."""
    seconds: float
    """Seconds of their collectives in a step."""


@dataclass(frozen=True, kw_only=True)
class AxisTraffic:
    """The collectives over some axes: what a device of the slowest rank sends in a step, and where it goes."""

    axes: str
    members: int
    sent_bytes: float
    today: Reach
    best: Reach


@dataclass(frozen=True, kw_only=True)
class LevelTraffic:
    """Bytes that a device of the slowest rank sends in a step in collectives that reach as far as one level."""

    level: str
    today_bytes: float
    best_bytes: float


@dataclass(frozen=True, kw_only=True)
class RankPlacement:
    """The answer. `device_order` holds the device of each rank of the plan's mesh that makes it the best order's mesh;
    None where that is the order of the ranks."""

    plan: str
    target: Target | None
    devices: int
    orders: int
    """Orders that the plan's views allow."""
    timed: int
    """Orders whose step was timed; that of none of the others can be faster."""
    refused: int
    """Orders that would be faster, and that a rule or the target refuses."""
    today: Order
    best: Order
    traffic: tuple[AxisTraffic, ...]
    levels: tuple[LevelTraffic, ...]
    device_order: tuple[int, ...] | None

    def to_json(self) -> dict[str, Any]:
        """The answer as a JSON object."""
        return {"format": FORMAT, **asdict(self)}


def place(costed: CostedPlan) -> tuple[RankPlacement, Mesh]:
    """The best order of the mesh axes of `costed`, a plan with its cost, and the mesh in that order.

    Raises ValueError, in words for the user, where the mesh has more than MOST_AXES axes that could change places.
    """
    plan, mesh = costed.sharded.plan, costed.sharded.plan.mesh
    moving = moving_axes(mesh)
    if len(moving) > MOST_AXES:
        raise ValueError(f"the mesh has {len(moving)} axes that could change places; orders of {MOST_AXES} are tried")
    orders = _Orders(costed)
    chosen = orders.best()
    best = orders.seconds[chosen][1]
    rows = costed.timed.mine
    traffic = tuple(_traffic(plan, best, rows))
    answer = RankPlacement(
        plan=plan.name,
        target=costed.target,
        devices=mesh.devices,
        orders=len(orders.seconds),
        timed=len({*orders.timed, *orders.costed} - orders.refused),
        refused=len(orders.refused),
        today=_order(plan, mesh, rows, costed.step.time_s),
        best=_order(plan, best, rows, orders.step_s(chosen)),
        traffic=traffic,
        levels=tuple(_levels(traffic)),
        device_order=device_order(mesh, best),
    )
    return answer, best


def device_order(mesh: Mesh, best: Mesh) -> tuple[int, ...] | None:
    """For each rank of `mesh`, outermost axis first, the device on which it lies as in `best`, another order of the
    same axes; None where that is its own number."""
    found = [0]
    for axis in mesh.axes:
        stride = best.axis(axis.name).stride
        found = [offset + i * stride for offset in found for i in range(axis.size)]
    return None if found == [*range(mesh.devices)] else tuple(found)


def mesh_text(mesh: Mesh) -> str:
    """The axes of `mesh` with their sizes, as its sentence has them."""
    return " > ".join(f"{name} {size}" for name, size in mesh.sizes.items())


def reordered(written: str, names: Iterable[str]) -> str:
    """The axes of a mesh sentence in the order of `names`, each with its size as it is `written`: a number or a name.

    >>> reordered("tp 8 > fsdp n", ["fsdp", "tp"])
    'fsdp n > tp 8'
    """
    parts = {part.split()[0]: part for part in map(str.strip, written.split(">"))}
    return " > ".join(parts[name] for name in names)


class _Orders:
    """The orders of the axes of a plan, each with the seconds of its collectives and, where it may be the best, of its
    step."""

    def __init__(self, costed: CostedPlan) -> None:
        self.today, self.plan = costed, costed.sharded.plan
        rows = {(r.axes, r.op, r.buffer_bytes, r.count): r for r in costed.timed.rows}
        self.seconds = [(row_seconds(self.plan, m, [*rows.values()]), m) for m in axis_orders(self.plan.mesh)]
        self.seconds[1:] = sorted(self.seconds[1:], key=lambda found: sum(found[0]))
        self.refused: set[int] = set()
        """Places in `seconds` of orders that a rule or the target refuses."""
        self.timed: dict[int, float] = {}
        """Seconds of the step of orders with the collectives of today's program."""
        self.disjoint: dict[int, float] = {}
        """Seconds of the step of orders if no two collectives had a link in common."""
        self.costed: dict[int, float] = {0: costed.step.time_s}
        """Seconds of the step of orders that were checked and costed as a plan of their own."""

    def best(self) -> int:
        """The place in `seconds` of the order with the fastest step; of equal ones that with the fastest collectives,
        and today's before others."""
        while True:
            best = self._fastest()
            if best in self.costed:
                return best
            self._cost(best)

    def _fastest(self) -> int:
        """That of the orders that are not refused yet. They are timed in the order of what their steps take at least,
        until none of the others can be faster."""
        best: tuple[float, float, int] | None = None
        for least_s, i in sorted(self._in_question()):
            if best is None or _rounded(least_s) <= best[0]:
                mine = _rounded(self.step_s(i)), sum(self.seconds[i][0]), i
                best = mine if best is None else min(best, mine)
        assert best is not None
        return best[2]

    def step_s(self, i: int) -> float:
        """Seconds of the step in one order: as costed, else with the collectives of today's program."""
        if i in self.costed:
            return self.costed[i]
        if i not in self.timed:
            self.timed[i] = self._step_s(i, LinkTimes())
        return self.timed[i]

    def _step_s(self, i: int, links: LinkTimes) -> float:
        moved = replace(self.today.sharded, plan=replace(self.plan, mesh=self.seconds[i][1]))
        rows = self.today.timed.rows if self.today.backend is not None else None
        return step_time(moved, rows, links).step.time_s

    def _disjoint_s(self, i: int) -> float:
        """Seconds of the step in one order if no two of its collectives had a link in common."""
        if i not in self.disjoint:
            self.disjoint[i] = self._step_s(i, LinkTimes(disjoint=True))
        return self.disjoint[i]

    def _in_question(self) -> Iterator[tuple[float, int]]:
        """Orders that are not refused and may be the fastest, each after the seconds that its step takes at least:
        those in which some collective is faster than in each of the others; on a graph all, as links that no other
        collective uses may decide."""
        kept: list[int] = []
        beaten: dict[int, list[int]] = {}
        for i, (seconds, _) in enumerate(self.seconds):
            if i not in self.refused:
                beaten[i] = [k for k in kept if _none_faster(seconds, self.seconds[k][0])]
                if not beaten[i]:
                    kept.append(i)
        if self.plan.cluster.own_graph is None:
            yield from ((0.0, i) for i in kept)
            return
        for i, faster in beaten.items():
            if faster:
                yield max(map(self._disjoint_s, faster)) * (1 + 10 * SAME), i  # as long is not faster
            else:
                yield self._disjoint_s(i), i

    def _cost(self, i: int) -> None:
        """Check and cost the plan with its axes in this order; the order is refused where a rule or the target does."""
        try:
            checked = check_plan(replace(self.plan, mesh=self.seconds[i][1]))
            self.costed[i] = cost_plan(propagate(checked), backend=self.today.backend).step.time_s
        except PlanError:
            self.refused.add(i)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.12g}")


def _none_faster(seconds: list[float], known: list[float]) -> bool:
    """True if no collective takes fewer seconds than it is known to take in another order."""
    return all(one >= other * (1 - SAME) for one, other in zip(seconds, known, strict=True))


def _order(plan: Plan, mesh: Mesh, rows: list[Collective], step_s: float) -> Order:
    return Order(mesh=mesh_text(mesh), step_s=step_s, collectives_s=sum(row_seconds(plan, mesh, rows)))


def _traffic(plan: Plan, best: Mesh, rows: list[Collective]) -> Iterator[AxisTraffic]:
    """The rows of each group of axes, those that send the most first."""
    by_axes: dict[tuple[str, ...], list[Collective]] = defaultdict(list)
    for row in rows:
        by_axes[row.axes].append(row)
    for axes, mine in sorted(by_axes.items(), key=lambda found: -sum(r.wire_bytes for r in found[1])):
        yield AxisTraffic(
            axes="+".join(axes),
            members=mine[0].group_size,
            sent_bytes=sum(r.wire_bytes for r in mine),
            today=_reach(plan, plan.mesh, axes, mine),
            best=_reach(plan, best, axes, mine),
        )


def _reach(plan: Plan, mesh: Mesh, axes: tuple[str, ...], rows: list[Collective]) -> Reach:
    group = device_group(mesh, plan.cluster, axes)
    return Reach(level=group.level, nodes=group.outside, seconds=sum(row_seconds(plan, mesh, rows)))


def _levels(traffic: tuple[AxisTraffic, ...]) -> Iterator[LevelTraffic]:
    """Each level that some collective reaches, in today's order or in the best one."""
    today: dict[str, float] = defaultdict(float)
    best: dict[str, float] = defaultdict(float)
    for one in traffic:
        today[one.today.level] += one.sent_bytes
        best[one.best.level] += one.sent_bytes
    for level in dict.fromkeys([*today, *best]):
        yield LevelTraffic(level=level, today_bytes=today.get(level, 0.0), best_bytes=best.get(level, 0.0))
