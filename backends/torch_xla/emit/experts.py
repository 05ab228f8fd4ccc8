"""Emits the tables of MoE layers."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.source_writer import beside, comment
from planc.backends.xla.analysis.layouts import Spec, outermost_first
from planc.backends.xla.analysis.mesh_factors import parts
from planc.backends.xla.emit.specs import spec_text
from planc.diag.quoting import python_string
from planc.ir.sharding import OpSharding, Sharded


def has_experts(sharded: Sharded) -> bool:
    """True if some blocks of the model in `sharded` have experts."""
    return bool(sharded.model.top_k)


def experts_constants(sharded: Sharded) -> list[str]:
    """Returns the lines of `EXPERTS`, the name of the MoE modules, and of the shardings of expert inputs, hidden
    activations and outputs. The model in `sharded` must have experts."""
    plan = sharded.plan
    route = next(_ops(sharded, "route"))
    gate = next(o for o in _ops(sharded, "matmul") if "expert_ffn" in o.layout or o.op.region == "experts")
    slots, batch, sequence = gate.layout.get("slots", ()), plan.data_axes, plan.axes_of("sequence", "residual")

    def entry(dim: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        return parts(plan, outermost_first(plan, dim, axes))

    of_batch = entry("batch", tuple(a for a in batch if a in slots))
    of_sequence = entry("sequence", tuple(a for a in sequence if a in slots))
    of_experts = entry("experts", gate.layout.get("experts", ()))
    of_ffn = entry("expert_ffn", gate.layout.get("expert_ffn", ()))
    rows: Spec = (of_batch, of_sequence, ())
    mid: Spec = (of_batch, of_sequence, of_experts, of_ffn)
    limited: list[str] = []
    if plan.route.method == "capacity":
        rows, mid = (of_batch, of_sequence, of_experts, (), ()), (of_batch, of_sequence, of_experts, (), of_ffn)
        ranks = plan.mesh.size(*batch), plan.mesh.size(*sequence)
        said = plan.route.cause.comment() if plan.route.cause else ""
        limited = [
            *beside(f"CAPACITY_FACTOR = {plan.route.factor!r}", said),
            *beside(f"TOKEN_RANKS = {ranks}", "ranks that shard the sequences, and the tokens of each"),
        ]
    hidden: Spec = (entry("batch", batch), entry("sequence", sequence), ())
    return [
        *comment("The MoE layers: their modules, and the shardings of expert inputs, hidden activations and outputs."),
        f"EXPERTS = {python_string(route.op.module)}",
        *limited,
        f"EXPERT_ROWS = {spec_text(rows)}",
        f"EXPERT_MID = {spec_text(mid)}",
        f"HIDDEN = {spec_text(hidden)}",
    ]


def _ops(sharded: Sharded, kind: str) -> Iterator[OpSharding]:
    return (o for section in sharded.ops.values() for o in section if o.op.kind == kind)
