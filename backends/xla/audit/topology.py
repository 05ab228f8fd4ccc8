"""Names the TPU topology of a plan as the compiler does: v5p:4x4x4, or 2 x v5p:4x4x4 for two slices."""

from __future__ import annotations

from planc.backends.xla.analysis.slices import ranks_over_slices, whole_axes
from planc.diag import Diagnostic, PlanError
from planc.ir.plan import Plan


def topology_of(plan: Plan, requested: str | None) -> str:
    """Return the topology of `plan` as the compiler names it; "" for virtual CPU devices.

    Raises PlanError if `requested` is another topology, or if an axis lies both within a slice and across slices.
    """
    cluster = plan.cluster
    if not cluster.has_tpus:
        if requested:
            message = f"the plan's cluster is no torus of TPUs: it cannot be compiled for {requested}"
            raise PlanError([Diagnostic("E0902", message, cluster.cause.span)])
        return ""
    own = f"{cluster.chip.name}:{'x'.join(str(n) for n in cluster.shape)}"
    own = f"{cluster.count} x {own}" if cluster.count > 1 else own
    if requested and requested != own:
        message = f"the plan's cluster is {own}, not {requested}"
        raise PlanError([Diagnostic("E0902", message, cluster.cause.span, help=f"--topology {own}, or none")])
    if cluster.count > 1 and not (ranks_over_slices(plan) and whole_axes(plan)):
        message = (
            f"an audit counts what crosses slices by whole axes; of {own} with {cluster.devices_per_node} devices a"
            " slice, one axis lies on several and within one"
        )
        raise PlanError([Diagnostic("E0902", message, plan.mesh.cause.span, help=f"an axis of {cluster.count} first")])
    return own


def slices_of(topology: str) -> tuple[int, str]:
    """Return the number of slices in `topology`, and the topology of one slice.

    >>> slices_of("2 x v5p:4x4x4"), slices_of("v5p:4x4x4")
    ((2, 'v5p:4x4x4'), (1, 'v5p:4x4x4'))
    """
    count, several, one = topology.rpartition(" x ")
    return (int(count), one) if several else (1, one)
