"""Slices of TPUs, joined by the data-centre network: the axes of the emitted mesh that lie across them.

Ranks count from slice to slice, so that the outermost axes do: all of an axis, or its outer part.
"""

from __future__ import annotations

from math import prod

from planc.backends.xla.analysis.mesh_factors import atoms, parts
from planc.ir.plan import Plan


def ranks_over_slices(plan: Plan) -> dict[str, int]:
    """The number of ranks that each axis of the mesh emitted for `plan` has on different slices, where it is more than
    one; {} for one slice, and where the axes do not meet at the end of a slice."""
    cluster = plan.cluster
    if not cluster.has_tpus or cluster.count == 1:
        return {}
    room = cluster.devices_per_node
    within = {a.name: min(a.size, max(1, room // a.stride)) for a in atoms(plan)}
    if prod(within.values()) != room or any(a.size % within[a.name] for a in atoms(plan)):
        return {}
    return {a.name: a.size // within[a.name] for a in atoms(plan) if a.size > within[a.name]}


def across(plan: Plan, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `axes` of `plan` whose ranks all lie on different slices."""
    slices = ranks_over_slices(plan)
    return tuple(a for a in axes if slices and set(parts(plan, (a,))) <= set(slices))


def whole_axes(plan: Plan) -> bool:
    """True if the axes of `plan` across slices have all of their ranks on different ones."""
    across = ranks_over_slices(plan)
    return all(across.get(a.name, a.size) == a.size for a in atoms(plan))
