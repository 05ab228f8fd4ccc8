"""E0402: too few microbatches, or a number the schedule cannot use."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace, sentence
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    split = plan.split
    if split is None or plan.batch.sequences % (plan.data_parallel * plan.batch.microbatch_sequences):
        return
    ranks, count = plan.pipeline, plan.microbatches
    interleaved = split.schedule == "interleaved_1f1b"
    if split.schedule in ("gpipe", "looped_bfs") or (count >= ranks and not (interleaved and count % ranks)):
        return
    rule = f"a multiple of {ranks}" if interleaved else f"at least {ranks}"
    wanted = max(ranks, -(-count // ranks) * ranks)
    sequences = wanted * plan.data_parallel * plan.batch.microbatch_sequences
    bubble = (ranks - 1) / (count * split.chunks + ranks - 1)
    text = f"{sequences} x {plan.batch.sequence_tokens} tokens microbatch {plan.batch.microbatch_sequences}"
    yield Diagnostic(
        "E0402",
        f"{split.schedule} over {ranks} ranks wants {rule} microbatches; there {'is' if count == 1 else 'are'} {count}",
        split.cause.span,
        help=f"{sequences} sequences give {wanted} microbatches (now a bubble of about {bubble:.0%})",
        related=(Related(plan.batch.cause.span, f"{count} microbatches a rank"),),
        fix=replace(plan.batch.cause, sentence("batch", text)),
    )


RULE = Rule(
    code="E0402",
    title="microbatches do not fit the schedule",
    reads="plan",
    why="""One-forward-one-backward needs a microbatch for every stage to fill the pipeline; with
fewer it idles or, in some versions of the runtimes, hangs. The interleaved schedule hands out
microbatches in groups of the number of ranks.""",
    bad="""plan example
model     llama3_8b
batch     4 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
use       pp over pp as 1f1b
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     32 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
use       pp over pp as 1f1b
recompute blocks
""",
    check=check,
)
