"""N0119: what a model's code keeps for its backward was not seen."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """A note for each range of lengths with those of `plan` in it, where the code of its model was not seen."""
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
