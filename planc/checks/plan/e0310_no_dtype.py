"""Rule E0310 (error): the chip cannot run matmuls in the dtype of a `quantize` sentence."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.hardware import NARROW
from planc.ir.plan import Plan


def fails(plan: Plan, dtype: str) -> bool:
    """True if matmuls in `dtype` fail on the chip of `plan`, a GPU. XLA and CPUs use a wider dtype instead."""
    chip = plan.cluster.chip
    return dtype in NARROW and dtype not in chip.flops_per_s and not plan.cluster.has_tpus and not chip.hosts_itself


def check(plan: Plan) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each `quantize` sentence of `plan` whose matmuls cannot run on its chip."""
    chip = plan.cluster.chip
    for q in plan.quantize:
        if fails(plan, q.dtype):
            yield Diagnostic(
                "E0310",
                f"{chip.name} has no units for {q.dtype}: the products of {', '.join(q.ops)} do not start on it",
                q.cause.span,
                help=f"rates of {chip.name}: {', '.join(chip.flops_per_s)}; leave the sentence out, or take a chip"
                f" with a rate for {q.dtype}",
                related=(Related(plan.cluster.cause.span, f"{plan.cluster.name} has {chip.name}"),),
            )


RULE = Rule("E0310", about=("quantize", "cluster"), check=check)
