"""The TPU topology that a plan is compiled for, in the compiler's words: v5p:4x4x4."""

from __future__ import annotations

from planc.diag import Diagnostic, PlanError
from planc.ir.plan import Plan


def topology_of(plan: Plan, requested: str | None) -> str:
    """The topology of `plan`, the only one that may be `requested`; "" for virtual CPU devices.

    Raises PlanError when another one is asked for, or the plan's is none that the compiler describes.
    """
    cluster = plan.cluster
    if cluster.kind != "torus":
        if requested:
            message = f"the plan's cluster is no torus of TPUs: it cannot be compiled for {requested}"
            raise PlanError([Diagnostic("E0902", message, cluster.cause.span)])
        return ""
    own = f"{cluster.chip.name}:{'x'.join(str(n) for n in cluster.shape)}"
    if requested and requested != own:
        message = f"the plan's cluster is {own}, not {requested}"
        raise PlanError([Diagnostic("E0902", message, cluster.cause.span, help=f"--topology {own}, or none")])
    if cluster.count > 1:
        message = f"an audit compiles one slice; the plan has {cluster.count} of {own}"
        raise PlanError([Diagnostic("E0902", message, cluster.cause.span)])
    return own
