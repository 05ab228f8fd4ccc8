"""The possible orders of a mesh's axes on the machine, and the seconds of collectives in each order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from planc.costing.machine.collective_time import collective_s
from planc.costing.machine.group import device_group
from planc.ir.collective import Collective
from planc.ir.mesh import Mesh, are_neighbours
from planc.ir.plan import Plan


def axis_orders(mesh: Mesh) -> Iterator[Mesh]:
    """Yield `mesh` with its axes in every possible order, the given one first. Axes that a view (another factorization,
    for the experts) replaces stay adjacent. Axes of size 1 keep their positions.

    >>> [list(order.sizes) for order in axis_orders(plan.mesh)][:2]
    [['pp', 'fsdp', 'tp'], ['pp', 'tp', 'fsdp']]
    """
    moving = moving_axes(mesh)
    for chosen in permutations(moving):
        after = iter(chosen)
        names = tuple(next(after) if name in moving else name for name in mesh.sizes)
        sizes = {name: mesh.sizes[name] for name in names}
        if all(are_neighbours(sizes, view.of) for view in mesh.views):
            yield mesh.reordered((*names, *(name for view in mesh.views for name in view.names)))


def moving_axes(mesh: Mesh) -> list[str]:
    """Return the axes of `mesh` whose position matters: those of several ranks, or replaced by a view.

    >>> moving_axes(plan.mesh)
    ['pp', 'fsdp', 'tp']
    """
    covered = {name for view in mesh.views for name in view.of}
    return [name for name, size in mesh.sizes.items() if size > 1 or name in covered]


def row_seconds(plan: Plan, mesh: Mesh, rows: Sequence[Collective]) -> list[float]:
    """Return the seconds per step of each collective in `rows`, if the axes of `plan` had the order of `mesh`.

    >>> row_seconds(plan, plan.mesh, [])
    []
    """
    groups = {axes: device_group(mesh, plan.cluster, axes) for axes in {r.axes for r in rows}}
    return [r.count * collective_s(r.op, r.buffer_bytes, groups[r.axes]) for r in rows]
