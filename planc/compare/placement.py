"""Find the order of a plan's mesh axes with the fastest step on its machine: `planc.place/1`.

An order is pruned if in another order no collective is slower. On a machine described as a graph, where collectives
share links, that is not enough: an order is pruned only if a lower bound of its step, without shared links, is at least
the best known step. The other orders' steps are estimated. The best order is then checked and costed as a plan, because
its target may refuse it.
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
"""Maximum number of axes with more than one rank: 5,040 orders."""
SAME = 1e-12
"""Two times with a smaller relative difference are equal."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """An order of the mesh axes, with its step time and the total time of its collectives."""

    mesh: str
    step_s: float
    collectives_s: float
    """Seconds of all collectives of the slowest rank, exposed or not."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The part of the machine that a process group over some axes spans, and the time of its collectives."""

    level: str
    """The outermost level of the network; on a graph of links the busiest link."""
    nodes: float
    """Nodes (or slices of a torus) per group."""
    seconds: float
    """Seconds per step of their collectives."""


@dataclass(frozen=True, kw_only=True)
class AxisTraffic:
    """The collectives over some axes: bytes that a device of the slowest rank sends per step, and the network tier that
    they span today and in the best order."""

    axes: str
    members: int
    sent_bytes: float
    today: Reach
    best: Reach


@dataclass(frozen=True, kw_only=True)
class LevelTraffic:
    """Bytes per step that a device of the slowest rank sends in collectives whose outermost network tier is `level`."""

    level: str
    today_bytes: float
    best_bytes: float


@dataclass(frozen=True, kw_only=True)
class RankPlacement:
    """The result. `device_order` has the device of each rank of the plan's mesh that gives the best order; None if no
    rank moves."""

    plan: str
    target: Target | None
    devices: int
    orders: int
    """Number of orders that the plan's views allow."""
    timed: int
    """Number of orders whose step was estimated; no other order can be faster."""
    refused: int
    """Number of faster orders that a check or the target refuses."""
    today: Order
    best: Order
    traffic: tuple[AxisTraffic, ...]
    levels: tuple[LevelTraffic, ...]
    device_order: tuple[int, ...] | None

    def to_json(self) -> dict[str, Any]:
        """Return the result as an object of the format `planc.place/1`."""
        return {"format": FORMAT, **asdict(self)}


def place(costed: CostedPlan) -> tuple[RankPlacement, Mesh]:
    """Return the result for the plan of `costed`, and its mesh with the axes in the best order.

    Raises ValueError, with a message for the user, if more than MOST_AXES axes could change places.
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
    """Return the device index of each rank of `mesh` that places its axes as in `best`, a mesh of the same axes in
    another order. None if every rank has the device of its own index."""
    found = [0]
    for axis in mesh.axes:
        stride = best.axis(axis.name).stride
        found = [offset + i * stride for offset in found for i in range(axis.size)]
    return None if found == [*range(mesh.devices)] else tuple(found)


def mesh_text(mesh: Mesh) -> str:
    """Return the axes of `mesh` with their sizes, as in a mesh sentence."""
    return " > ".join(f"{name} {size}" for name, size in mesh.sizes.items())


def reordered(written: str, names: Iterable[str]) -> str:
    """Return `written`, the axes of a mesh sentence, in the order `names`. Sizes stay as written: a number or a name.

    >>> reordered("tp 8 > fsdp n", ["fsdp", "tp"])
    'fsdp n > tp 8'
    """
    parts = {part.split()[0]: part for part in map(str.strip, written.split(">"))}
    return " > ".join(parts[name] for name in names)


class _Orders:
    """All orders of a plan's mesh axes. `seconds` has the seconds of each collective, and the mesh, of each order."""

    def __init__(self, costed: CostedPlan) -> None:
        self.today, self.plan = costed, costed.sharded.plan
        rows = {(r.axes, r.op, r.buffer_bytes, r.count): r for r in costed.timed.rows}
        self.seconds = [(row_seconds(self.plan, m, [*rows.values()]), m) for m in axis_orders(self.plan.mesh)]
        self.seconds[1:] = sorted(self.seconds[1:], key=lambda found: sum(found[0]))
        self.refused: set[int] = set()
        """Indices into `seconds` of orders that a check or the target refuses."""
        self.timed: dict[int, float] = {}
        """Step time (s) of orders, estimated with the collectives of the current program."""
        self.disjoint: dict[int, float] = {}
        """Lower bound (s) of the step time of orders: no two collectives share a link."""
        self.costed: dict[int, float] = {0: costed.step.time_s}
        """Step time (s) of orders that were checked and costed as a plan."""

    def best(self) -> int:
        """Return the index of the order with the fastest step; of equal ones, that with the fastest collectives."""
        while True:
            best = self._fastest()
            if best in self.costed:
                return best
            self._cost(best)  # may refuse it or change its time, so that another order is the fastest

    def _fastest(self) -> int:
        """Return the index of the fastest order that is not refused. Steps are estimated by increasing lower bound,
        until all remaining bounds exceed the fastest step."""
        best: tuple[float, float, int] | None = None
        for least_s, i in sorted(self._in_question()):
            if best is None or _rounded(least_s) <= best[0]:
                mine = _rounded(self.step_s(i)), sum(self.seconds[i][0]), i
                best = mine if best is None else min(best, mine)
        assert best is not None
        return best[2]

    def step_s(self, i: int) -> float:
        """Return the step time (s) of order `i`: costed if possible, else estimated with the collectives of the current
        program."""
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
        """Return a lower bound on the step time (s) of order `i`, in which no two collectives share a link."""
        if i not in self.disjoint:
            self.disjoint[i] = self._step_s(i, LinkTimes(disjoint=True))
        return self.disjoint[i]

    def _in_question(self) -> Iterator[tuple[float, int]]:
        """Yield (lower bound of the step in seconds, index) of each order that could be the fastest. Refused orders are
        left out, and so are orders that are no faster than another one in any collective; the latter not on a graph, as
        links are shared."""
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
        """Check and cost the plan with the axes in order `i`. Add `i` to `refused` if that raises an error."""
        try:
            checked = check_plan(replace(self.plan, mesh=self.seconds[i][1]))
            self.costed[i] = cost_plan(propagate(checked), backend=self.today.backend).step.time_s
        except PlanError:
            self.refused.add(i)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.12g}")


def _none_faster(seconds: list[float], known: list[float]) -> bool:
    """True if each collective takes at least as many `seconds` as in the order `known`."""
    return all(one >= other * (1 - SAME) for one, other in zip(seconds, known, strict=True))


def _order(plan: Plan, mesh: Mesh, rows: list[Collective], step_s: float) -> Order:
    return Order(mesh=mesh_text(mesh), step_s=step_s, collectives_s=sum(row_seconds(plan, mesh, rows)))


def _traffic(plan: Plan, best: Mesh, rows: list[Collective]) -> Iterator[AxisTraffic]:
    """Yield the traffic over each group of axes, largest first."""
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
    today: dict[str, float] = defaultdict(float)
    best: dict[str, float] = defaultdict(float)
    for one in traffic:
        today[one.today.level] += one.sent_bytes
        best[one.best.level] += one.sent_bytes
    for level in dict.fromkeys([*today, *best]):
        yield LevelTraffic(level=level, today_bytes=today.get(level, 0.0), best_bytes=best.get(level, 0.0))
