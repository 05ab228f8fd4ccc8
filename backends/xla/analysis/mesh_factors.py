"""One mesh for a plan with a view: the axes of mesh and view are factored into common axes.

`fsdp 4` with the view `ep 2 > efsdp 2 of fsdp` becomes a mesh of `ep` and `efsdp`, whose product is fsdp. A JAX program
has one mesh; its axes are these factors. Without a view they are the plan's own axes.
"""

from __future__ import annotations

from itertools import pairwise

from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import cached_on
from planc.ir.mesh import Axis, View
from planc.ir.plan import Plan


@dataclass(frozen=True, slots=True)
class Atom:
    """An axis of the emitted mesh: `size` ranks, `stride` apart."""

    name: str
    size: int
    stride: int


@cached_on(lambda plan: (plan.cache, ()))
def atoms(plan: Plan) -> tuple[Atom, ...]:
    """Return the axes of the mesh emitted for `plan`, outermost first. `fits(plan)` must be true."""
    assert fits(plan), "refused before"
    covered = {a for view in plan.mesh.views for a in view.of}
    found = [Atom(a.name, a.size, a.stride) for a in plan.mesh.axes if a.name not in covered]
    for view in plan.mesh.views:
        found += [Atom(_name(plan, view, a, b), b // a, a) for a, b in pairwise(_points(plan, view))]
    order = {a.name: i for i, a in enumerate(plan.mesh.axes)}
    return tuple(sorted(found, key=lambda a: (-a.stride, order.get(a.name, -1))))


def parts(plan: Plan, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes of the emitted mesh (factors of the plan's axes) whose product is `axes` of `plan`, in order."""
    return tuple(name for axis in axes for name in _parts_of_axis(plan, plan.mesh.axis(axis)))


def fits(plan: Plan) -> bool:
    """True if the axes of every view of `plan` (another factorization of mesh axes, for the experts) have common
    factors with the mesh. Axes of 2 x 3 and 3 x 2 ranks have none."""
    return all(all(b % a == 0 for a, b in pairwise(_points(plan, view))) for view in plan.mesh.views)


def aliases(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the axes of `plan` that are products of other axes of the emitted mesh, with these factors."""
    every = {a: parts(plan, (a,)) for a in plan.mesh.every if plan.mesh.size(a) > 1}
    return {name: made for name, made in every.items() if made != (name,)}


def _points(plan: Plan, view: View) -> list[int]:
    """Return the strides (in ranks) at which an axis of the mesh or of the view begins or ends, smallest first. A view
    is another factorization of mesh axes, for the experts."""
    axes = [*(plan.mesh.axis(name) for name in view.of), *view.axes]
    return sorted({point for a in axes for point in (a.stride, a.stride * a.size)})


def _name(plan: Plan, view: View, begin: int, end: int) -> str:
    """Return the name of the factor between the strides `begin` and `end`: that of the mesh axis, or else of the view's
    axis, with exactly these strides; if there is none, the names of both axes, joined by `_`."""
    own = _axis_over([plan.mesh.axis(name) for name in view.of], begin, end)
    other = _axis_over(list(view.axes), begin, end)
    whole = [a.name for a in (own, other) if (a.stride, a.stride * a.size) == (begin, end)]
    return whole[0] if whole else f"{own.name}_{other.name}"


def _axis_over(axes: list[Axis], begin: int, end: int) -> Axis:
    return next(a for a in axes if a.stride <= begin and end <= a.stride * a.size)


def _parts_of_axis(plan: Plan, axis: Axis) -> tuple[str, ...]:
    """Return the factors of an axis, outermost first; () for an axis of size 1."""
    if axis.size == 1:
        return ()
    end = axis.stride * axis.size
    return tuple(a.name for a in atoms(plan) if a.size > 1 and axis.stride <= a.stride and a.stride * a.size <= end)
