"""Rule W0601 (warning): the step is faster with the mesh axes in another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from planc.checks.edits import mesh_sentence
from planc.checks.edits import replace as written_instead
from planc.checks.recost import recost
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.mesh import Mesh
from planc.ir.plan import Plan

if TYPE_CHECKING:
    from planc.costing import CostedPlan

MOST_AXES = 5
"""Limits the number of orders to 120."""
MOST_ROUTED = 1024
"""Largest graph of links (devices) for which every order is routed."""
TRIED = 3
"""Number of orders whose whole step is costed."""
MIN_GAIN = 0.02
"""Orders that gain a smaller share of the step are not reported."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    from planc.costing.machine.axis_orders import moving_axes

    plan = costed.sharded.plan
    if plan.cluster.own_graph is not None and plan.mesh.devices > MOST_ROUTED:
        return
    if len(moving_axes(plan.mesh)) > MOST_AXES or _outside_s(costed) < MIN_GAIN * costed.step.time_s:
        return
    before = costed.step.time_s
    tried = [(recost(replace(plan, mesh=mesh), costed), mesh) for mesh in _candidate_meshes(costed)]
    timed = [(other.step.time_s, mesh) for other, mesh in tried if other is not None]
    after, best = min(timed, key=lambda found: found[0], default=(before, plan.mesh))
    if before - after < MIN_GAIN * before:
        return
    yield Diagnostic(
        "W0601",
        f"{_largest_gain(costed, best)}; with the mesh {_order(best)} the step takes {after:.3g} s instead of"
        f" {before:.3g} s, {(before - after) / before:.0%} less",
        plan.mesh.cause.span,
        help="axes are laid on the machine outermost first: what transfers the most belongs innermost",
        fix=written_instead(plan.mesh.cause, mesh_sentence(best.sizes)),
    )


def _candidate_meshes(costed: CostedPlan) -> list[Mesh]:
    """Return up to `TRIED` meshes with reordered axes and at least `MIN_GAIN` of the step less exposed communication.

    Orders in which activations would span more nodes are left out, because these transfers block every layer.
    """
    from planc.costing.machine.axis_orders import axis_orders, row_seconds

    plan = costed.sharded.plan
    stages = {plan.split.axis} if plan.split else set()
    waiting = {r.row.axes for r in costed.collectives if r.row.carries == "activation" and not stages & {*r.row.axes}}
    orders = [m for m in axis_orders(plan.mesh) if m.axes != plan.mesh.axes and not _leaves(plan, m, waiting)]
    shown = [r for r in costed.collectives if r.exposed_s > 0]
    rows, shares = [r.row for r in shown], [r.exposed_s / r.time_s for r in shown]

    def visible_s(mesh: Mesh) -> float:
        return sum(share * s for share, s in zip(shares, row_seconds(plan, mesh, rows), strict=True))

    enough = sum(r.exposed_s for r in shown) - MIN_GAIN * costed.step.time_s
    timed = sorted((visible_s(mesh), i) for i, mesh in enumerate(orders))
    return [orders[i] for seconds, i in timed[:TRIED] if seconds < enough]


def _outside_s(costed: CostedPlan) -> float:
    """Return the exposed seconds of transfers between nodes. If they are short, no other order can gain much."""
    cluster = costed.sharded.plan.cluster
    near = {cluster.link.name, cluster.chip.name}
    return sum(r.exposed_s for r in costed.collectives if r.level not in near)


def _leaves(plan: Plan, mesh: Mesh, groups: set[tuple[str, ...]]) -> bool:
    """True if one of `groups`, which transfer activations, would span more nodes in `mesh`."""
    from planc.costing.machine.group import device_group

    here, there = ({g: device_group(m, plan.cluster, g).outside for g in groups} for m in (plan.mesh, mesh))
    return any(there[g] > here[g] for g in groups)


def _largest_gain(costed: CostedPlan, best: Mesh) -> str:
    """Return a clause about the exposed transfer that gains the most: its network tier in the plan's mesh and in
    `best`."""
    from planc.costing.machine.axis_orders import row_seconds
    from planc.costing.machine.group import device_group

    plan = costed.sharded.plan
    then = row_seconds(plan, best, [r.row for r in costed.collectives])
    saved = [(r.time_s - s) * r.exposed_s for r, s in zip(costed.collectives, then, strict=True)]
    index = max(range(len(saved)), key=lambda i: saved[i])
    slow = costed.collectives[index]
    here, there = (device_group(mesh, plan.cluster, slow.row.axes) for mesh in (plan.mesh, best))
    axes = " and ".join(f"`{a}` of stride {plan.mesh.axis(a).stride}" for a in slow.row.axes)
    units = f"{plan.cluster.unit}s"
    return (
        f"the {slow.row.op} over {axes} runs at {here.level}, over {here.outside:g} {units},"
        f" and takes {slow.time_s / then[index]:.1f}x as long as at {there.level}"
    )


def _order(mesh: Mesh) -> str:
    return " > ".join(f"{name} {size}" for name, size in mesh.sizes.items())


RULE = Rule("W0601", check=check)
