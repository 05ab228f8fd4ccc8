"""Runs a plan on fewer devices, if the preset allows it, by reducing one data-parallel axis.

The global batch is unchanged: each rank runs more microbatches, so the order of the data and the update of each step
stay the same. The sharding over other axes is unchanged.
"""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction

from planc.diag import Diagnostic, PlanError
from planc.ir.hardware import Cluster
from planc.ir.plan import Plan
from planc.trainer.preset.load import Preset


def here() -> int | None:
    """Return the number of ranks that a launcher started (WORLD_SIZE); None if no launcher did."""
    return int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else None


def fitted(preset: Preset, devices: int | None) -> Preset:
    """Return `preset` with a plan for `devices` devices; unchanged if `devices` is None or the plan's own number.

    Raises PlanError (E1033) if the preset does not allow fewer devices, or the axis cannot be reduced so far.
    """
    plan = preset.plan
    if devices in (None, plan.mesh.devices):
        return preset
    assert devices is not None
    return replace(preset, plan=_shorter(preset, devices))


def _shorter(preset: Preset, devices: int) -> Plan:
    plan, axis = preset.plan, preset.checkpoint.elastic
    sizes = dict(plan.mesh.sizes)
    if not axis:
        raise _refused(preset, devices, "the preset does not allow fewer", f'write `elastic = "{_free(plan)}"`')
    if axis not in sizes or axis not in plan.data_axes or axis in {a for view in plan.mesh.views for a in view.of}:
        why = f"`{axis}` is no data-parallel axis of the mesh that may shrink"
        raise _refused(preset, devices, why, f"one that may: {_free(plan)}")
    size = Fraction(sizes[axis] * devices, plan.mesh.devices)
    if size.denominator != 1 or not 1 <= size < sizes[axis] or plan.mesh.devices % devices:
        others = plan.mesh.devices // sizes[axis]
        raise _refused(preset, devices, f"{axis} {sizes[axis]} cannot shrink to them", f"a multiple of {others} can be")
    sizes[axis] = int(size)
    cluster = _cluster_part(plan.cluster, plan.mesh.devices // devices)
    if cluster is None:
        raise _refused(preset, devices, f"they are no whole part of {plan.cluster.name}", "")
    shorter = replace(plan, mesh=plan.mesh.resized(sizes.values()), cluster=cluster)
    rows = shorter.data_parallel * plan.batch.microbatch_sequences
    if plan.batch.sequences % rows:
        why = f"{plan.batch.sequences} sequences are no multiple of {rows}, what its ranks take at a time"
        raise _refused(preset, devices, why, "")
    return shorter


def _cluster_part(cluster: Cluster, share: int) -> Cluster | None:
    """Return a cluster of 1/`share` of the devices: fewer nodes, fewer chips of one node, or a smaller torus; None if
    the cluster cannot be divided so."""
    if cluster.count % share == 0:
        return replace(cluster, count=cluster.count // share)
    shape = list(cluster.shape)
    at = next((n for n, size in enumerate(shape) if cluster.count == 1 and size % share == 0), None)
    if at is None:
        return None
    shape[at] //= share
    return replace(cluster, shape=tuple(shape))


def _free(plan: Plan) -> str:
    """Return a data-parallel axis that no view (another factorization of mesh axes, for the experts) factorizes; "none"
    if there is none."""
    covered = {a for view in plan.mesh.views for a in view.of}
    return next((a for a in plan.data_axes if a in plan.mesh.sizes and a not in covered), "none")


def _refused(preset: Preset, devices: int, why: str, help_text: str) -> PlanError:
    message = f"the plan is for {preset.plan.mesh.devices} devices, and {devices} are here: {why}"
    return PlanError([Diagnostic("E1033", message, preset.at("checkpoint", "elastic"), help=help_text)])
