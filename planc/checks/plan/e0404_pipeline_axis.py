"""E0404: the pipeline's axis is also used for something else."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import remove
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    split = plan.pipelined
    if split is None:
        return
    if all(axis.name != split.axis for axis in plan.mesh.axes):
        yield Diagnostic(
            "E0404",
            f"axis `{split.axis}` is of a view, and layers are split over an axis of the mesh",
            split.cause.span,
            help="a view divides the ranks of the mesh's axes once more, for some parameters: these ranks hold the "
            "same layers",
        )
        return
    uses = [(s.axes, s.cause) for s in plan.shards] + [(s.axes, s.cause) for s in plan.stores]
    for axes, cause in uses:
        if split.axis in axes:
            yield Diagnostic(
                "E0404",
                f"axis `{split.axis}` splits the layers and cannot divide anything else",
                cause.span,
                related=(Related(split.cause.span, "the layers are split here"),),
                fix=remove(cause),
                help="ranks along a pipeline hold different layers and have no tensor in common to divide",
            )
            return


RULE = Rule(
    code="E0404",
    title="the pipeline's axis is used twice",
    reads="plan",
    why="""Ranks along the pipeline's axis hold different layers and see every sequence, so
neither the batch nor stored state can be divided over it.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
use       pp over pp as 1f1b
shard     vocab over pp
compute   fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
use       pp over pp as 1f1b
compute   fp32
recompute blocks
""",
    check=check,
)
