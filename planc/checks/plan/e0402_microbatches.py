"""Rule E0402 (error): the pipeline schedule does not support the plan's number of microbatches."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace, sentence
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan, Split
from planc.pipeline.schedule import Need
from planc.pipeline.split import schedule_of, shape_of


def check(plan: Plan) -> Iterator[Diagnostic]:
    split = plan.pipelined
    unit = plan.data_parallel * plan.batch.microbatch_sequences
    if split is None or plan.batch.sequences % unit:
        return
    ranks, count = plan.pipeline, plan.microbatches
    need = _listed(split, count) if split.order else schedule_of(split).need(shape_of(split, ranks, count))
    if need is None:
        return
    sequences = need.microbatches * unit
    bubble = (ranks - 1) / (count * split.chunks + ranks - 1)
    now = "" if split.order else f" (now a bubble of about {bubble:.0%})"
    text = f"{sequences} x {plan.batch.sequence_tokens} tokens microbatch {plan.batch.microbatch_sequences}"
    yield Diagnostic(
        "E0402",
        f"{split.schedule} over {ranks} ranks needs {need.text} microbatches; the plan has {count}",
        split.cause.span,
        help=f"{need.microbatches} microbatches x {unit} sequences = {sequences} sequences{now}",
        related=(Related(plan.batch.cause.span, f"{plan.batch.sequences} sequences / {unit} = {count} microbatches"),),
        fix=replace(plan.batch.cause, sentence("batch", text)),
    )


def _listed(split: Split, count: int) -> Need | None:
    """Return the number of microbatches in a schedule read from a file; None if the plan has the same number."""
    from planc.pipeline import csv_schedule

    listed = csv_schedule.microbatches(split.order)
    return None if listed == count else Need(f"the {listed} listed", listed)


RULE = Rule(
    "E0402",
    check=check,
    of_batch=True,
    about=(
        "batch",
        "mesh",
        "view",
        "shard",
        "replicate",
        "use",
        "split",
    ),
)
