"""Reduce a plan to fewer data-parallel ranks: each rank does the same work, and tracing is faster."""

from __future__ import annotations

from dataclasses import replace

from planc.ir.mesh import Mesh, strided
from planc.ir.plan import Plan

SMALLEST = 2
"""Minimum size of an axis, so that no axis disappears."""


def shrunk(plan: Plan, ranks: int) -> Plan:
    """Reduce the data-parallel axes until the plan has at most `ranks` devices or no axis can be reduced further.

    The batch is reduced too, so that each rank has as many microbatches as before. Axes that a view (another
    factorization of mesh axes, for the experts) factorizes are unchanged.
    """
    sizes = dict(plan.mesh.sizes)
    covered = {a for view in plan.mesh.views for a in view.of}
    free = [a for a in plan.data_axes if a in sizes and a not in covered]
    while _devices(sizes) > ranks:
        axis = max(free, key=lambda a: sizes[a], default="")
        factor = _factor(sizes[axis]) if axis else 1
        if factor == 1:
            break
        sizes[axis] //= factor
    return plan if sizes == plan.mesh.sizes else _with_sizes(plan, sizes)


def size_changes(plan: Plan, small: Plan) -> tuple[str, ...]:
    """Describe the axes and the batch of `plan` that are smaller in `small`, as one line; () if none is."""
    axes = [
        f"{name} {size} -> {small.mesh.sizes[name]}"
        for name, size in plan.mesh.sizes.items()
        if small.mesh.sizes[name] != size
    ]
    if not axes:
        return ()
    batch = f"{plan.batch.sequences} -> {small.batch.sequences} sequences"
    return (f"fewer data-parallel ranks: {', '.join(axes)}; batch {batch}, microbatches as before",)


def _factor(size: int) -> int:
    """Return the smallest prime factor of `size` with a quotient of at least `SMALLEST`; 1 if there is none."""
    return next((n for n in range(2, size) if size % n == 0 and size // n >= SMALLEST), 1)


def _devices(sizes: dict[str, int]) -> int:
    total = 1
    for size in sizes.values():
        total *= size
    return total


def _with_sizes(plan: Plan, sizes: dict[str, int]) -> Plan:
    mesh = Mesh(axes=strided(sizes), views=plan.mesh.views, cause=plan.mesh.cause)
    share = plan.mesh.devices // mesh.devices
    return replace(plan, mesh=mesh, batch=replace(plan.batch, sequences=plan.batch.sequences // share))
