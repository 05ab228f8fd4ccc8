"""Rule E0302 (error): the length of a dim is not divisible by the ranks that shard it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from planc.checks.edits import divisors, replace, sentence
from planc.checks.splits import divided, resize
from planc.diag.diagnostic import Diagnostic, Fix
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    for dim, axes, region in divided(plan):
        length = plan.batch.sequence_tokens if dim == "sequence" else plan.model.sizes[dim]
        ranks = plan.mesh.size(*axes)
        if dim == "kv_heads" or length % ranks == 0 or (dim == "vocab" and _rows_for_all(length, ranks)):
            continue
        cause = plan.cause_of_shard(dim, axes[0], region)
        legal = divisors(length, 64 if len(axes) == 1 else ranks)
        yield Diagnostic(
            "E0302",
            f"{dim} {length} over {' x '.join(axes)} = {ranks} ranks: {length / ranks:g} each",
            cause.span if cause else plan.mesh.cause.span,
            help=f"sizes that divide {length}: {', '.join(map(str, legal))}. {_nearest(length, ranks)}",
            fix=_fix(plan, dim, axes, legal),
        )


def _rows_for_all(vocab: int, ranks: int) -> bool:
    """True if every one of `ranks` ranks gets rows when `vocab` rows are sharded as by `torch.chunk`: all shards but
    the last have the same size.

    >>> _rows_for_all(128257, 2), _rows_for_all(10, 8)  # 64129 and 64128; two each for five ranks
    (True, False)
    """
    return ceil(vocab / ranks) * (ranks - 1) < vocab


def _nearest(length: int, ranks: int) -> str:
    below, above = length // ranks * ranks, -(-length // ranks) * ranks
    return f"Nearest lengths: {below} or {above}" if below else f"Nearest length: {above}"


def _fix(plan: Plan, dim: str, axes: tuple[str, ...], legal: list[int]) -> Fix | None:
    """Return the edit that resizes the axis to one of the sizes `legal`, or for the sequence dim the edit of its
    length. None if there is none."""
    if dim == "sequence":
        batch, ranks = plan.batch, plan.mesh.size(*axes)
        near = round(batch.sequence_tokens / ranks) * ranks
        text = f"{batch.sequences} x {near} tokens microbatch {batch.microbatch_sequences}"
        return replace(batch.cause, sentence("batch", text)) if near else None
    return resize(plan, axes[-1], legal) if len(axes) == 1 else None


RULE = Rule("E0302", check=check)
