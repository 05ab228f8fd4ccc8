"""E0413: a schedule that does not support this pipeline."""

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


RULE = Rule(
    code="E0413",
    title="a schedule that does not support this pipeline",
    reads="plan",
    why="""DualPipe pairs the ranks of two pipelines that run against each other, so their number is
even. The circular pipeline of XLA is one program with the stages as a dim of its arrays: every stage holds
as many layers.""",
    bad="""plan example
model     llama3_8b
batch     192 x 1024 tokens microbatch 1
cluster   3 x h100_node
mesh      pp 3 > fsdp 8
use       fsdp over fsdp
split     layers over pp as dualpipe
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     192 x 1024 tokens microbatch 1
cluster   3 x h100_node
mesh      pp 3 > fsdp 8
use       fsdp over fsdp
split     layers over pp as dualpipev stages [embed + 6, 4 x 6 layers, 2 + head]
compute   bf16 reduce fp32
recompute blocks
""",
    check=check,
)
