"""W0511: the logits take a large part of the memory."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import add, replace, sentence
from planc.cost import Costed
from planc.diag.diagnostic import Diagnostic, Fix, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding.local import local_elements

SHARE = 0.2
"""Of a device's memory."""
BYTES = 8
"""The fp32 logits and their gradient."""


def check(costed: Costed) -> Iterator[Diagnostic]:
    sharded = costed.sharded
    plan = sharded.plan
    elements = _elements(sharded)
    gib = elements * BYTES / 2**30
    if gib <= SHARE * costed.memory.capacity_gib:
        return
    batch = plan.batch
    fix = _mend(plan)
    yield Diagnostic(
        "W0511",
        f"logits of {batch.microbatch_sequences} x {batch.sequence_tokens} tokens x {plan.model.sizes['vocab']} words"
        f" and their gradient take {gib:.1f} GiB of {costed.memory.capacity_gib:.0f} GiB",
        batch.cause.span,
        help=(f"{fix.title}; " if fix else "") + "smaller microbatches, or the vocab over another axis, divide them",
        related=(Related(plan.cluster.cause.span, f"{costed.memory.capacity_gib:.0f} GiB a device"),),
        fix=fix,
    )


def _elements(sharded: Sharded) -> float:
    """Local elements of the largest tensor that the loss reads."""
    losses = [o for ops in sharded.ops.values() for o in ops if o.op.kind == "loss"]
    dims = [(o, sharded.model.tensor[n].dims) for o in losses for n in o.op.inputs]
    return max((local_elements(sharded.plan, d, o.layout) for o, d in dims if "vocab" in d), default=0)


def _mend(plan: Plan) -> Fix | None:
    batch = plan.batch
    if batch.microbatch_sequences > 1:
        text = f"{batch.sequences} x {batch.sequence_tokens} tokens microbatch 1"
        return replace(batch.cause, sentence("batch", text))
    axes = {a for s in plan.shards if s.dim == "ffn" for a in s.axes} - {
        a for s in plan.shards if s.dim == "vocab" for a in s.axes
    }
    names = plan.mesh.in_order(axes)
    if names and plan.model.sizes["vocab"] % plan.mesh.size(*names) == 0:
        return add(plan.mesh, sentence("shard", f"vocab over {', '.join(names)}"))
    return None


RULE = Rule(
    code="W0511",
    title="large logits",
    reads="cost",
    why="""The last stage holds a number for each token and word of the vocabulary, in fp32, and its
gradient: with a large vocabulary that is the largest tensor of the model, on one stage only. It is the
usual reason why the last stage runs out of memory although its layers fit.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 4
cluster   1 x h200_node
mesh      fsdp 8
use       fsdp over fsdp
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h200_node
mesh      fsdp 8
use       fsdp over fsdp
recompute blocks
""",
    check=check,
)
