"""Rule E0203 (error): the number of ranks in the mesh differs from the number of devices in the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from planc.checks.edits import mesh_sentence, replace
from planc.diag.diagnostic import Diagnostic, Fix, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    wanted, there = plan.mesh.devices, plan.cluster.devices
    if wanted == there:
        return
    factors = " x ".join(str(a.size) for a in plan.mesh.axes)
    help, fix = _fix(plan)
    help = "; or ".join(filter(None, (help, _part_of_nodes(plan))))
    yield Diagnostic(
        "E0203",
        f"the mesh has {wanted} devices, the cluster has {there}",
        plan.mesh.cause.span,
        label=f"{factors} = {wanted}" if len(plan.mesh.axes) > 1 else "",
        help=help,
        related=(Related(plan.cluster.cause.span, cluster_size(plan)),),
        fix=fix,
    )


def cluster_size(plan: Plan) -> str:
    """Return the device count of the cluster of `plan` as a product, such as `64 nodes x 8 h100 = 512`."""
    cluster = plan.cluster
    each = f"{prod(cluster.shape)} {cluster.chip.name}"
    pair = f" x {cluster.chip.devices} devices a chip" if cluster.chip.devices > 1 else ""
    kind = f"{cluster.unit}s"
    return f"{cluster.count} {kind} x {each}{pair} = {cluster.devices}"


def _part_of_nodes(plan: Plan) -> str:
    """Return help that names a part of the nodes of `plan` with as many devices as its mesh; "" if there is none."""
    cluster, inside = plan.cluster, prod(plan.cluster.shape)
    chips, rest = divmod(plan.mesh.devices, cluster.chip.devices)
    if cluster.is_torus or cluster.own_graph or rest or chips >= cluster.chips:
        return ""
    count = next((n for n in (ceil(chips / inside), cluster.count) if chips % n == 0), 0)
    part = f"({chips // count})" if count and chips // count < inside else ""
    return f"`cluster {count} x {cluster.name}{part}` has {plan.mesh.devices}" if count else ""


def _fix(plan: Plan) -> tuple[str, Fix | None]:
    """Return help and an edit that resizes one axis to match the device count, data-parallel axes first. Axes of which
    a view (another factorization, for the experts) exists are not resized."""
    sizes, there = plan.mesh.sizes, plan.cluster.devices
    divided = {axis for view in plan.mesh.views for axis in view.of}
    order = [*reversed(plan.data_axes), *reversed(sizes)]
    for name in dict.fromkeys(a for a in order if a in sizes and a not in divided):
        rest = plan.mesh.devices // sizes[name]
        if there % rest == 0:
            fitted = {**sizes, name: there // rest}
            if _batch_fits(plan, fitted):
                product = " x ".join(str(n) for n in fitted.values())
                return f"{name} {there // rest} fits ({product} = {there})", replace(
                    plan.mesh.cause, mesh_sentence(fitted)
                )
    return "no single axis can be changed to fit", None


def _batch_fits(plan: Plan, sizes: dict[str, int]) -> bool:
    every = {name: axis.size for name, axis in plan.mesh.every.items()} | sizes
    ranks = prod(every[a] for s in plan.shards if s.dim == "batch" for a in s.axes)
    return plan.batch.sequences % (ranks * plan.batch.microbatch_sequences) == 0


RULE = Rule(
    "E0203",
    check=check,
    about=(
        "mesh",
        "cluster",
    ),
)
