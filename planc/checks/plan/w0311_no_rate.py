"""Rule W0311 (warning): the chip's hardware file has no FLOP rate for a dtype of the plan."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.plan.e0310_no_dtype import fails
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.base import Cause
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each sentence of `plan` with a dtype for which the chip's hardware file has no FLOP rate,
    except matmul dtypes that cannot run (E0310)."""
    from planc.costing.machine.rates import rated_dtype

    chip, reported = plan.cluster.chip, set()
    for dtype, runs, cause in _requested(plan):
        if dtype in chip.flops_per_s or (dtype, cause) in reported or (runs and fails(plan, dtype)):
            continue
        reported.add((dtype, cause))
        what = f"products are costed as {rated_dtype(chip, dtype)}" if runs else "state in it is converted for each use"
        yield Diagnostic(
            "W0311",
            f"{chip.name} has no rate for {dtype}: {what}",
            (cause or plan.mesh.cause).span,
            help=f"rates of {chip.name}: {', '.join(chip.flops_per_s)}; take one of these, or write the chip's rate"
            " into its file if it has one",
        )


def _requested(plan: Plan) -> Iterator[tuple[str, bool, Cause | None]]:
    """Yield (dtype, True if matmuls run in it or False if it only stores state, the sentence that names it)."""
    yield plan.precision.multiplied, True, plan.precision.cause
    yield from ((q.dtype, True, q.cause) for q in plan.quantize)
    yield from ((s.dtype, False, s.cause) for s in plan.stores if s.dtype)


RULE = Rule("W0311", check=check)
