"""Refuses `loss in N chunks` with a head that the program's own function does not compute."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import refused
from planc.backends.xla.analysis.pipeline import pipelined
from planc.costing.compute.quantize import quantized
from planc.diag import Diagnostic
from planc.ir.sharding import Sharded


def chunked(sharded: Sharded) -> Iterator[Diagnostic]:
    """Yield why the head of the plan in `sharded` cannot run in chunks: all ranks of a pipeline share it, or it is not
    one matmul in the compute dtype, divided in equal parts of its vocabulary."""
    plan, said = sharded.plan, sharded.plan.chunked_loss
    if said is None or said.chunks == 1:
        return
    head = next(o for o in reversed(sharded.ops["last"]) if o.op.kind != "loss")
    whole = {d for d, axes in head.layout.items() if axes} - {"batch", "sequence", "vocab"}
    ranks = plan.mesh.size(*head.layout.get("vocab", ()))
    why = ""
    if pipelined(plan):
        why = "the ranks of a pipeline share the head and its rows"
    elif head.op.kind != "matmul" or len(head.op.params) != 1:
        why = f"{head.op.name} is more than one matmul"
    elif quantized(plan, head.op):
        why = f"{head.op.name} multiplies in {plan.precision.compute} in the chunks"
    elif whole or plan.model.sizes["vocab"] % ranks:
        why = f"{head.op.name} is not divided in equal parts of its vocabulary"
    if why:
        yield refused("xla target", said.cause, why, help="leave it out", label=why)
