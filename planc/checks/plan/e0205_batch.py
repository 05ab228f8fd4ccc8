"""Rule E0205 (error): the global batch is not divisible by data-parallel ranks times microbatch size."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace, sentence
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    batch = plan.batch
    unit = plan.data_parallel * batch.microbatch_sequences
    if batch.sequences % unit == 0:
        return
    axes = " x ".join(f"{a} {plan.mesh.sizes[a]}" for a in plan.data_axes) or "1"
    below = batch.sequences // unit * unit
    near = [n for n in (below, below + unit) if n]
    text = sentence("batch", f"{near[-1]} x {batch.sequence_tokens} tokens microbatch {batch.microbatch_sequences}")
    said = f". {spellings(plan, near[-1])}" if near[-1] <= 2 * batch.sequences else ""
    cause = plan.cause_of_shard("batch", plan.data_axes[0]) if plan.data_axes else None
    yield Diagnostic(
        "E0205",
        f"{batch.sequences} sequences are not a multiple of {axes} data-parallel ranks x"
        f" {batch.microbatch_sequences} sequences a microbatch = {unit}",
        batch.cause.span,
        label=f"{batch.sequences} / {unit} = {batch.sequences / unit:.2f} microbatches",
        help=f"nearest: {' or '.join(str(n) for n in near)} sequences" + said,
        related=(Related(cause.span, "the batch is divided here"),) if cause else (),
        fix=replace(batch.cause, text) if near[-1] <= 2 * batch.sequences else None,
    )


def spellings(plan: Plan, sequences: int) -> str:
    """Return a batch of `sequences` as the options of DeepSpeed, Megatron, torchtitan and MaxText, such as
    `global_batch_size`."""
    micro, ranks, tokens = plan.batch.microbatch_sequences, plan.data_parallel, plan.batch.sequence_tokens
    steps = sequences // (micro * ranks)
    devices = plan.mesh.devices
    per_device = sequences / devices / steps
    return (
        f"{sequences} is DeepSpeed's train_batch_size = train_micro_batch_size_per_gpu {micro} x"
        f" gradient_accumulation_steps {steps} x {ranks}; Megatron's micro-batch-size {micro}, global-batch-size"
        f" {sequences}; torchtitan's {micro * tokens} tokens a microbatch and rank; MaxText's per_device_batch_size"
        f" {per_device:g}, gradient_accumulation_steps {steps}"
    )


RULE = Rule(
    "E0205",
    check=check,
    of_batch=True,
    about=(
        "batch",
        "mesh",
        "view",
        "shard",
        "replicate",
        "use",
    ),
)
