"""The first step of a plan's program on ranks that are not there: it runs, and its collectives are those predicted.

On cuda one rank of each pipeline stage over a fake process group; on xla the step compiled for virtual devices.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from planc.checks import check_plan
from planc.ir.audit import AXES_WITHIN, compared, differences
from planc.ir.program import Program
from planc.lowering import lower_plan
from planc.trainer.receipt.routing import routed_layers
from tests.random_plans.forks import Row, forked
from tests.random_plans.worker import LATE_S, plan_of


def row_of(stack: str, path: Path, folder: Path) -> Row:
    """The row of a plan: `collectives` that are not as predicted; `failed` with the reason where no step ran."""
    plan = plan_of(path, stack)
    program = lower_plan(check_plan(plan), "cuda" if stack == "cuda" else "xla")
    works = [stage_of(program, n) for n in range(plan.pipeline)] if stack == "cuda" else [xla_step(program)]
    total: Row = {"collectives": [], "cpu_s": 0.0}
    for work in works:
        row = forked(1, work, folder, LATE_S)
        if "collectives" not in row:
            return row
        total = {name: total[name] + row[name] for name in total}
    return total


def stage_of(program: Program, stage: int) -> Callable[[int], Row]:
    """The trace of a stage's first rank, in a process of its own: DTensor remembers the meshes of an earlier one."""

    def traced(_: int) -> Row:
        from planc.backends.cuda.audit.predict import predicted
        from planc.backends.cuda.audit.trace import trace

        found = trace(program, stage, whole=True)
        rows = compared(stage, predicted(program.sharded, stage), found.totals)
        return {"collectives": [*differences(rows), *(f"{name} is not understood" for name in found.unparsed)]}

    return traced


def xla_step(program: Program) -> Callable[[int], Row]:
    """The step compiled for virtual devices: bytes on each axis, as the audit judges them, and layers of the picks."""

    def compiled(_: int) -> Row:
        from planc.backends.xla.audit.compile import CompilerAnswer
        from planc.backends.xla.audit.run import audit_of_answer
        from planc.backends.xla.audit.worker import described, step_of

        _, step, arguments = step_of(program, described("", program.plan))
        lowered = step.lower(*arguments)
        text = lowered.compile().as_text()
        answer = CompilerAnswer(
            topology="", on_torus=None, options={}, versions={}, compile_s=0.0, peak_bytes=None, hlo=text
        )
        off = [w for w in audit_of_answer(program.sharded, answer).judged if abs(w.relative) > AXES_WITHIN]
        found = [f"{w.axis}: predicted {w.predicted_bytes} bytes, compiled {w.observed_bytes}" for w in off]
        routed = routed_layers(program.plan.model)
        counted = lowered.out_info[1]["picks"].shape[0] if routed else 0
        return {"collectives": [*found, *([f"picks of {counted} layers of {routed}"] if counted != routed else [])]}

    return compiled
