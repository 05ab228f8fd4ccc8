"""Rule N0119 (note): the memory that a model's own code saves was not measured at this sequence length."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """Yield a note for each range of sequence lengths that includes that of `plan` and for which the model's code was
    not run."""
    tokens, cause = plan.batch.sequence_tokens, plan.model.cause
    for unseen in plan.model.unseen:
        if cause is not None and unseen.above < tokens <= (unseen.up_to or tokens):
            yield Diagnostic(
                "N0119",
                f"what its code keeps for the backward was not seen {unseen.range_in_words}: {unseen.why}",
                cause.span,
                help="there planc's own modules stand for it in the peaks of torch",
            )


RULE = Rule("N0119", check=check)
