"""A plan with fewer data-parallel ranks: what one rank does stays the same, and tracing it costs less."""

from __future__ import annotations

from dataclasses import replace

from planc.ir.mesh import Mesh, strided
from planc.ir.plan import Plan

SMALLEST = 2
"""An axis that is there stays there."""


def shrunk(plan: Plan, ranks: int) -> Plan:
    """The plan with its data-parallel axes shortened until it has at most `ranks` devices, or none can be.

    The batch shrinks with them, so that each rank sees as many microbatches as before. Axes that a view
    lies over are left alone.
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
    """The changes from `plan` to `small`, in words; empty for the plan itself."""
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
    """The smallest prime that an axis can be divided by; 1 when it must stay."""
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
