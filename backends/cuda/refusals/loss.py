"""Refuses `loss in N chunks` with a head or a loss that the emitted functions do not compute."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import Refusal
from planc.backends.cuda.analysis.placements import WHOLE
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.costing.compute.quantize import quantized
from planc.ir.sharding import Sharded


def refused(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses the sentence if the loss is compiled, if the head is more than one matmul in the compute dtype, or if
    tensor parallelism shards the head in another dim than the vocabulary."""
    plan, head = sharded.plan, roles.head
    sentence = plan.chunked_loss
    if sentence is None or sentence.chunks == 1:
        return
    if compiled := plan.compiled("loss"):
        yield compiled.cause, "a loss in chunks is functions of the program's own", "leave one of both sentences out"
    if head.kind != "matmul" or len(head.params) != 1 or head.own_code:
        yield sentence.cause, f"{head.name} is more than one matmul", "leave it out"
    elif narrow := quantized(plan, head):
        yield narrow.cause, f"{head.name} multiplies in {plan.precision.compute} in the chunks", "leave the head out"
    b = next((b for b in Styler(sharded, roles).section("last") if b.o.op is head), None) if roles.tensor else None
    if b and (b.settle is not None or b.rows or (b.weight != WHOLE and (b.weight.dim != 0 or b.weight.inner))):
        what = f"tensor parallelism shards {head.name} in another dim than the vocabulary, or redistributes the logits"
        yield sentence.cause, what, "shard vocab over its axis, or nothing of the head"
