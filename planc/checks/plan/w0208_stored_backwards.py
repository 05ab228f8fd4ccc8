"""Rule W0208 (warning): parameters or gradients are sharded in storage, but the optimizer state is replicated."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import add, sentence
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import NOUNS, Plan
from planc.ir.updates import moment_elements


def check(plan: Plan) -> Iterator[Diagnostic]:
    noun = next((n for n in NOUNS[:2] if plan.store(n)), None)
    if noun is None or plan.store("optimizer"):
        return
    axes = plan.store(noun)
    cause = plan.cause_of_store(noun)
    bytes_each = 4 * moment_elements(plan) / plan.model.parameters
    each = bytes_each * plan.model.parameters / plan.pipeline / 2**30
    yield Diagnostic(
        "W0208",
        f"{noun} are stored over {', '.join(axes)} but the optimizer's moments, {bytes_each:.3g} bytes a parameter, are"
        " whole",
        cause.span if cause else plan.mesh.cause.span,
        help=f"dividing the optimizer is free and saves up to {each * (1 - 1 / plan.mesh.size(*axes)):.0f} GiB"
        " on each device",
        fix=add(plan.mesh, sentence("store", f"optimizer over {', '.join(axes)}")),
    )


RULE = Rule("W0208", check=check)
