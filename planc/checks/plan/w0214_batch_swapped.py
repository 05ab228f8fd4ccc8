"""Rule W0214 (warning): the batch has few tokens per sequence and many sequences, as if the two were swapped."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace, sentence
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan

SHORT, MANY = 512, 2048
"""Thresholds: no bundled language model is trained with so few tokens per sequence, and so many sequences per step are
more typical of a sequence's tokens."""


def check(plan: Plan) -> Iterator[Diagnostic]:
    batch = plan.batch
    sequences, tokens = batch.sequences, batch.sequence_tokens
    if not (tokens <= SHORT and sequences >= MANY):
        return
    text = sentence("batch", f"{tokens} x {sequences} tokens microbatch {batch.microbatch_sequences}")
    yield Diagnostic(
        "W0214",
        f"{sequences:,} sequences of {tokens:,} tokens: these two look swapped",
        batch.cause.span,
        label="sequences x tokens of a sequence",
        help=f"{tokens:,} sequences of {sequences:,} tokens are as many tokens a step, and another step",
        fix=replace(batch.cause, text) if tokens % (plan.data_parallel * batch.microbatch_sequences) == 0 else None,
    )


RULE = Rule("W0214", check=check, about=("batch",))
