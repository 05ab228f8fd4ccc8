"""Rule E0213 (error): sequences are longer than the model's learned position embeddings."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace, sentence
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    tokens, positions = plan.batch.sequence_tokens, plan.model.sizes.get("positions", 0)
    cause = plan.model.cause
    if not 0 < positions < tokens:
        return
    named = cause is not None and cause.sentence.split() == ["model", plan.model.name]
    related = (Related(cause.span, f"{plan.model.name} has {positions} positions"),) if cause is not None else ()
    longer = f"{plan.model.name}(positions = {tokens})"
    yield Diagnostic(
        "E0213",
        f"sequences of {tokens} tokens, and {plan.model.name} has learned {positions} positions",
        plan.batch.cause.span,
        help=f"at most {positions} tokens, or `model {longer}`",
        related=related,
        fix=replace(cause, sentence("model", longer)) if cause is not None and named else None,
    )


RULE = Rule("E0213", check=check)
