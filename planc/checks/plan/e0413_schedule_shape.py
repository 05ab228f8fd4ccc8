"""Rule E0413 (error): the pipeline schedule does not support this number of ranks or stages of unequal size."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan
from planc.pipeline.split import schedule_of


def check(plan: Plan) -> Iterator[Diagnostic]:
    split = plan.pipelined
    if split is None:
        return
    schedule, ranks = schedule_of(split), plan.pipeline
    if schedule.even_ranks and ranks % 2:
        yield Diagnostic(
            "E0413",
            f"{split.schedule} sends microbatches in from both ends and needs an even number of ranks, not {ranks}",
            split.cause.span,
            help=f"{split.axis} {ranks - 1} or {split.axis} {ranks + 1}, or dualpipev, which takes any number",
            related=(Related(plan.mesh.cause.span, f"{split.axis} is {ranks}"),),
        )
    sizes = sorted({end - begin for begin, end in split.stages})
    if schedule.equal_stages and len(sizes) > 1:
        layers, stages = plan.model.layers, len(split.stages)
        yield Diagnostic(
            "E0413",
            f"{split.schedule} runs one program on every rank and needs equal stages; the stages hold {sizes[0]} to"
            f" {sizes[-1]} layers",
            split.cause.span,
            help=f"{layers} layers / ({ranks} ranks x {split.chunks} chunks) = {layers / stages:.2f}:"
            " the product must divide the layers",
        )


RULE = Rule("E0413", check=check, of_batch=True)
