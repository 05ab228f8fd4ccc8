"""TPU slices joined by the data-centre network (DCN): which axes of the emitted mesh span them.

Ranks are numbered slice by slice, so the outermost axes span slices, in whole or with an outer factor.
"""

from __future__ import annotations

from math import prod

from planc.backends.xla.analysis.mesh_factors import atoms, parts
from planc.ir.plan import Plan


def ranks_over_slices(plan: Plan) -> dict[str, int]:
    """Return the number of TPU slices that an axis of the emitted mesh spans, for each axis that spans several; {} for
    a single slice, and if the axes of `plan` do not align with the boundary of a slice."""
    cluster = plan.cluster
    if not cluster.has_tpus or cluster.count == 1:
        return {}
    room = cluster.devices_per_node
    within = {a.name: min(a.size, max(1, room // a.stride)) for a in atoms(plan)}
    if prod(within.values()) != room or any(a.size % within[a.name] for a in atoms(plan)):
        return {}
    return {a.name: a.size // within[a.name] for a in atoms(plan) if a.size > within[a.name]}


def across(plan: Plan, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes of `plan` in `axes` whose ranks are all on different slices."""
    slices = ranks_over_slices(plan)
    return tuple(a for a in axes if slices and set(parts(plan, (a,))) <= set(slices))


def whole_axes(plan: Plan) -> bool:
    """True if no axis of `plan` spans several slices and also has several ranks on one slice."""
    across = ranks_over_slices(plan)
    return all(across.get(a.name, a.size) == a.size for a in atoms(plan))
