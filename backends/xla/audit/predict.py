"""Predicts the collectives of a compiled program by operation, mesh axes and dtype."""

from __future__ import annotations

from collections import Counter

from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.analysis.mesh_factors import parts
from planc.backends.xla.rules import realise
from planc.costing.compute.gemm import gemm_of
from planc.costing.step.step_products import step_flops
from planc.ir.audit import Key, Total, Totals
from planc.ir.backend import run_by
from planc.ir.sharding import OpSharding, Sharded
from planc.lowering import load_backend
from planc.sharding.collectives import semantic_collectives


def predicted(sharded: Sharded) -> Totals:
    """Return the calls and bytes that one device of `sharded` sends in a step, over the axes of the emitted mesh.

    All devices run one program, so bytes are averaged over the pipeline stages.
    """
    calls: Counter[Key] = Counter()
    wire: dict[Key, float] = {}
    stages = sharded.plan.pipeline
    for row in realise(sharded, semantic_collectives(sharded)):
        key = row.op, "+".join(parts(sharded.plan, row.axes)), row.dtype
        calls[key] += row.count
        wire[key] = wire.get(key, 0.0) + row.wire_bytes / stages
    return {key: Total(calls[key], round(sent)) for key, sent in wire.items()}


def matmul_flops(sharded: Sharded, *, virtual: bool) -> float:
    """Return the FLOPs of the matmuls that one device of `sharded` runs in a step outside kernels, on TPUs or on
    `virtual` CPU devices."""
    run = run_by(sharded, load_backend("xla"))
    return step_flops(run, 0, lambda o: _multiplied(run, o, virtual=virtual))


def _multiplied(sharded: Sharded, o: OpSharding, *, virtual: bool) -> float:
    """Return how often a program multiplies for op `o` what it asks for: 0 where a kernel does. Virtual CPU devices
    multiply the whole buffer of dropless experts' rows by every local expert."""
    route, gemm = sharded.plan.route, gemm_of(sharded, o) if o.op.kind == "matmul" else None
    if gemm is None or gemm.groups == 1 or route is None or route.method != "dropless":
        return 1.0
    return gemm.groups * XlaExpertAxes(sharded).most_rows_ratio if virtual else 0.0


def by_axis(totals: Totals) -> dict[str, int]:
    """Return the bytes sent over each axis in `totals`, summed over operations."""
    sent: dict[str, int] = {}
    for (_, axis, _), total in totals.items():
        sent[axis] = sent.get(axis, 0) + total.bytes
    return sent
