"""Rule E0215 (error): the tokens of a sequence on one rank do not divide into the chunks of the loss."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace, sentence
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    said = plan.chunked_loss
    axes = plan.axes_of("sequence", "head")
    ranks = plan.mesh.size(*axes)
    tokens = plan.batch.sequence_tokens // ranks
    if said is None or tokens % said.chunks == 0:
        return
    cause = plan.cause_of_shard("sequence", axes[0], "head") if axes else None
    fits = next(n for n in range(min(said.chunks, tokens), 0, -1) if tokens % n == 0)
    own = f" / {ranks} ranks = {tokens}" if ranks > 1 else ""
    yield Diagnostic(
        "E0215",
        f"{plan.batch.sequence_tokens} tokens of a sequence{own} do not divide into {said.chunks} chunks",
        said.cause.span,
        label=f"{tokens} / {said.chunks} = {tokens / said.chunks:.2f} tokens",
        help=f"the next smaller number that divides them is {fits}",
        related=(Related(cause.span, "the sequence is divided here"),) if cause else (),
        fix=replace(said.cause, sentence("loss", f"in {fits} chunks")),
    )


RULE = Rule("E0215", check=check)
