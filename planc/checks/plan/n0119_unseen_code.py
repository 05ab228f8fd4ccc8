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


RULE = Rule(
    code="N0119",
    title="what the code keeps was not seen",
    reads="plan",
    why="""`model from transformers` and `model from code` run a module forward and backward once, on tensors without
values, and note what its own code keeps: a copy in fp32 before a norm, scores of attention that is no fused kernel, a
mask. The peak of memory of torch programs follows from that. Where the module's code cannot be run so, with sequences
of the plan's length, this note says at which line and why, and the peak is predicted as if planc's own modules ran in
its place: too low where the module keeps more than these do.""",
    bad="",
    good="",
    check=check,
)
