"""E0213: sequences longer than the model has positions."""

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


RULE = Rule(
    code="E0213",
    title="sequences longer than the learned positions",
    reads="plan",
    why="""A model with learned positions has a vector for each place in a sequence, and none beyond the last one. A
framework fails at the first step, with an index out of range on the device. Rotary positions and ALiBi
have no such limit.""",
    bad="""plan example
model     megatron_1_7b
batch     64 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     megatron_1_7b(positions = 4096)
batch     64 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
    check=check,
)
