"""Rule W0211 (warning): two adjacent mesh axes are always used together, so that one axis would do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    if any(plan.mesh.size(*view.of) > 1 for view in plan.mesh.views):
        return
    uses = _uses(plan)
    axes = [a for a in plan.mesh.axes if a.size > 1]
    for outer, inner in itertools.pairwise(axes):
        if all((outer.name in group) == (inner.name in group) for group in uses):
            both = f"{outer.name} {outer.size} > {inner.name} {inner.size}"
            room = plan.cluster.chip.communicator_bytes / 2**20
            cost = f" and {room:.0f} MiB of buffers" if room else ""
            yield Diagnostic(
                "W0211",
                f"axes `{outer.name}` and `{inner.name}` are always used together",
                plan.mesh.cause.span,
                help=f"write one axis of {outer.size * inner.size} in place of {both}: a communicator{cost} less"
                " on every rank, and no collective in two parts",
            )


def _uses(plan: Plan) -> list[tuple[str, ...]]:
    """Return the groups of axes that sentences use together."""
    groups = [s.axes for s in plan.shards] + [s.axes for s in plan.stores if s.axes]
    groups += [axes for o in plan.overrides for axes in o.layout.values()]
    return groups + ([(plan.split.axis,)] if plan.split else [])


RULE = Rule("W0211", check=check)
