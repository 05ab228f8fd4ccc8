"""The cost of a plan on a changed machine, such as one with a slower link: `planc.what_if/1`.

Collectives are routed over the machine's graph of links before and after, so that only the change makes a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from planc.costing import CostedPlan
from planc.costing.machine.axis_orders import row_seconds
from planc.costing.machine.group import device_group
from planc.costing.routes.algorithms import machine_of, unchanged_machine
from planc.costing.routes.busy import busy_seconds
from planc.costing.routes.fabric import NoPathError
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source
from planc.driver import Examined, examine
from planc.graph import machine_links
from planc.graph.changes import ChangeError
from planc.graph.from_cluster import unchanged_links
from planc.ir.collective import Collective
from planc.ir.hardware import Change, Cluster
from planc.ir.plan import Plan
from planc.ir.target import NO_TARGET, AnyTarget, Target
from planc.language.what_if import read_what_ifs, source_of, span_of
from planc.syntax.suggest import nearest

FORMAT = "planc.what_if/1"


@dataclass(frozen=True, kw_only=True)
class State:
    """The plan's step on the original or on the changed machine."""

    mesh: dict[str, int]
    devices: int
    step_s: float
    tokens_per_s: float
    exposed_s: float
    """Seconds of the step that wait for collectives."""
    busiest_link: str
    """The link that is busy for the most seconds of a step."""
    busiest_s: float


@dataclass(frozen=True, kw_only=True)
class AxisChange:
    """The collectives over some axes on the original and the changed machine: their seconds, and their slowest link."""

    axes: str
    before_s: float
    after_s: float
    before_link: str
    after_link: str


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The result of `planc check --with`: the step on the original and on the changed machine."""

    plan: str
    changes: tuple[str, ...]
    target: Target | None
    """The target of all figures; None: any correct program."""
    checked_s: float
    """Step time (s) of the unchanged plan as in `planc check`, which uses closed forms where they apply."""
    before: State
    after: State
    axes: tuple[AxisChange, ...]
    """Axes, the largest slowdown first."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as an object of the format `planc.what_if/1`."""
        return {"format": FORMAT, **asdict(self)}


def what_if(examined: Examined, texts: Sequence[str], target: AnyTarget | None = None) -> tuple[WhatIf, Examined]:
    """Cost the plan of `examined` with and without the machine changes `texts`. Return that, and the checked changed
    plan.

    Raises PlanError if the plan has errors, a text is invalid, or the changed machine cannot run the plan.
    """
    changes = read_what_ifs(texts)
    plan = examined.plan
    if plan is None or examined.costed is None:
        raise PlanError(examined.report.diagnostics)
    one: AnyTarget = target or examined.report.target or NO_TARGET
    before = _costed(examine(routed(plan), target=one, targets=()))
    changed = _on(plan, changes)
    _try_each(changed.cluster, texts)
    smaller = _shrunk(changed, texts)
    try:
        after = examine(smaller, target=one, targets=())
    except NoPathError as error:
        raise PlanError([_found("E1423", f"{error}: not all ranks reach each other", texts)]) from error
    costs = before, _costed(after)
    answer = WhatIf(
        plan=plan.name,
        changes=tuple(" ".join(t.split()) for t in texts),
        target=costs[0].target,
        checked_s=examined.costed.step.time_s,
        before=_state(costs[0]),
        after=_state(costs[1]),
        axes=_axes(*costs),
    )
    return answer, after


def sources_of(examined: Examined, texts: Sequence[str]) -> dict[str, Source]:
    """Return the texts that diagnostics quote, by file name: those of the plan, and the machine changes `texts`."""
    source = source_of(texts)
    return {**examined.sources, source.file: source}


def routed(plan: Plan) -> Plan:
    """Return `plan` with its collectives routed over the machine's graph of links, not costed by closed formulas."""
    return _on(plan, _as_it_is(plan.cluster))


def _as_it_is(cluster: Cluster) -> tuple[Change, ...]:
    """Return a change without effect, which makes collectives routed over links."""
    if cluster.own_graph is not None:
        return ()
    one = replace(cluster, count=1)  # whose first links are those of all
    return (Change(kind="links", names=(machine_links(one).kinds[0].name,), value=1.0),)


def _on(plan: Plan, changes: tuple[Change, ...]) -> Plan:
    return replace(plan, cluster=_changed(plan.cluster, changes))


def _changed(cluster: Cluster, changes: tuple[Change, ...]) -> Cluster:
    """Return `cluster` with `changes`, and with the graph of before, which is built once."""
    found = replace(cluster, changes=changes)
    found.cache.share(cluster.cache, unchanged_links, unchanged_machine)
    return found


def _costed(examined: Examined) -> CostedPlan:
    if examined.costed is None:
        raise PlanError(examined.report.diagnostics)
    return examined.costed


def _found(code: str, message: str, texts: Sequence[str], line: int = 1, name: str = "", help: str = "") -> Diagnostic:
    return Diagnostic(code, message, span_of(texts[line - 1], line, name), help=help)


def _try_each(cluster: Cluster, texts: Sequence[str]) -> None:
    """Raise PlanError for the first text whose change the machine does not allow. `cluster` has all changes."""
    for line in range(1, len(cluster.changes) + 1):
        last = line == len(cluster.changes)
        try:
            machine_of(cluster if last else _changed(cluster, cluster.changes[:line]))
        except ChangeError as error:
            near = nearest(error.name, error.legal, 1) if error.name else []
            shown = ", ".join(error.legal[:8]) + (", ..." if len(error.legal) > 8 else "")
            help = (f"did you mean `{near[0]}`? " if near else "") + (f"there are {shown}" if shown else "")
            raise PlanError([_found("E1422", str(error), texts, line, error.name, help)]) from error


def _shrunk(plan: Plan, texts: Sequence[str]) -> Plan:
    """Return the plan on the devices that remain: a data-parallel axis and the batch are smaller."""
    left, mesh, cluster = len(machine_of(plan.cluster).links.devices), plan.mesh, plan.cluster
    if left >= mesh.devices:
        return plan
    free = [a for a in plan.data_axes if a in mesh.sizes and not any(a in view.of for view in mesh.views)]
    for axis in free:
        size = mesh.sizes[axis]
        for less in range(left * size // mesh.devices, 0, -1):
            devices = mesh.devices // size * less
            if plan.batch.sequences * less % size or devices % cluster.devices_per_node:
                continue
            sizes = [less if name == axis else a.size for name, a in mesh.every.items()]
            batch = replace(plan.batch, sequences=plan.batch.sequences * less // size)
            smaller = replace(cluster, count=devices // cluster.devices_per_node)
            return replace(plan, mesh=mesh.resized(sizes), batch=batch, cluster=smaller)
    message = f"{left:,} devices are left of {mesh.devices:,}, and no axis that divides the batch can be shorter"
    raise PlanError([_found("E1423", message, texts, help="write the mesh of the plan for them")])


def _state(costed: CostedPlan) -> State:
    plan, step = costed.sharded.plan, costed.step
    link, seconds = busiest(costed)
    return State(
        mesh=dict(plan.mesh.sizes), devices=plan.mesh.devices, step_s=step.time_s,
        tokens_per_s=plan.batch.tokens / step.time_s, exposed_s=step.exposed_comm_s,
        busiest_link=link, busiest_s=seconds,
    )  # fmt: skip


def busiest(costed: CostedPlan) -> tuple[str, float]:
    """Return the link that the collectives of `costed` keep busy the longest on its slowest rank, and those seconds.

    Without a graph of links, return the slowest network tier of the axes whose collectives take the longest.
    """
    plan, rows = costed.sharded.plan, costed.timed.mine
    total: dict[int, float] = {}
    for arcs in busy_seconds(plan, rows).values():
        for arc, seconds in arcs.items():
            total[arc] = total.get(arc, 0.0) + seconds
    seconds_of = _by_axes(plan, rows)
    if not seconds_of:
        return "", 0.0
    if total:
        fabric = machine_of(plan.cluster).fabric
        arc = max(total, key=lambda one: float(f"{total[one]:.9g}"))  # the first of equal ones
        return fabric.arc_name(fabric.slowest_of(arc)), total[arc]
    axes = max(seconds_of, key=seconds_of.__getitem__)
    return device_group(plan.mesh, plan.cluster, axes).level, seconds_of[axes]


def _by_axes(plan: Plan, rows: Sequence[Collective]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for row, seconds in zip(rows, row_seconds(plan, plan.mesh, rows), strict=True):
        found[row.axes] = found.get(row.axes, 0.0) + seconds
    return found


def _axes(before: CostedPlan, after: CostedPlan) -> tuple[AxisChange, ...]:
    sums: list[Mapping[tuple[str, ...], float]] = [_by_axes(c.sharded.plan, c.timed.mine) for c in (before, after)]
    changes = []
    for axes in dict.fromkeys([*sums[0], *sums[1]]):
        groups = [device_group(c.sharded.plan.mesh, c.sharded.plan.cluster, axes) for c in (before, after)]
        changes.append(
            AxisChange(
                axes="+".join(axes), before_s=sums[0].get(axes, 0.0), after_s=sums[1].get(axes, 0.0),
                before_link=groups[0].level, after_link=groups[1].level,
            )
        )  # fmt: skip
    return tuple(sorted(changes, key=lambda c: c.before_s - c.after_s))
