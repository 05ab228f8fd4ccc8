"""Rule W0602 (warning): a tensor-parallel axis does not fill a dimension of the torus, so that it is no ring."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    plan = costed.sharded.plan
    cluster = plan.cluster
    if not cluster.is_torus or plan.mesh.views:
        return
    sizes = sorted({prod(cluster.shape[i] for i in some) for some in _subsets(len(cluster.shape))})
    rows = [r.row for r in costed.collectives if r.row.carries == "activation" and r.row.op != "send_recv"]
    shape = "x".join(map(str, cluster.shape))
    for axis in plan.mesh.axes:
        used = any(axis.name in row.axes for row in rows)
        inside = axis.size * axis.stride <= cluster.devices_per_node
        if not used or axis.size <= 2 or axis.size in sizes or not inside:
            continue
        yield Diagnostic(
            "W0602",
            f"axis `{axis.name}` of {axis.size} does not fill dimensions of the {shape} torus: it has a part of a ring",
            plan.mesh.cause.span,
            help=f"sizes that fill dimensions of {shape}: {', '.join(map(str, sizes))}; a ring sends both ways, a line"
            " has half of its bandwidth",
            related=(Related(cluster.cause.span, f"a torus of {shape}"),),
        )


def _subsets(count: int) -> list[list[int]]:
    """Return every non-empty subset of the indices of `count` dims."""
    return [[i for i in range(count) if mask >> i & 1] for mask in range(1, 2**count)]


RULE = Rule("W0602", check=check)
