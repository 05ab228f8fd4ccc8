"""Chooses the layouts that a matmul states for its input and for its result's gradient, to share one gather of rows.

With sequence parallelism a norm's output is gathered for several matmuls, and gathered again in the backward, for the
gradients of their weights. JAX 0.10 redistributes the operands of each matmul by itself: without a stated layout the
TPU compiler gathers the input of q, k and v three times more in a block that is recomputed (llama3_70b over v5p, fsdp
64 > tp 4: 290.7 GB of gathers over tp, and 194.1 with these layouts).
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.xla.analysis.layouts import Spec, own_gradient, spec_of
from planc.backends.xla.analysis.narrow_products import narrow_params
from planc.backends.xla.analysis.pipeline import pipelined
from planc.ir.sharding import Layout, OpSharding, Sharded

Specs = dict[str, Spec]


def gathered_rows(sharded: Sharded) -> tuple[Specs, Specs]:
    """Return the layouts with whole rows of inputs and of results, by the parameter of their matmul; ({}, {}) without
    TPUs, in a pipeline, if `linear` has no backward of its own, and for another framework's program. Low-precision
    matmuls gather in their dtype."""
    plan = sharded.plan
    if not plan.cluster.has_tpus or not sharded.stack.own or pipelined(plan) or not own_gradient(plan):
        return {}, {}
    narrow = narrow_params(sharded)
    ops = [o for kind in sharded.model.blocks for o in sharded.ops[kind] if o.op.kind == "matmul"]
    ops = [o for o in ops if len(o.op.params) == 1 and o.op.params[0] not in narrow]

    def spec(name: str, layout: Layout) -> Spec:
        return spec_of(plan, sharded.model.tensor[name].dims, layout)

    inputs = {o.op.params[0]: spec(*found) for o in ops for found in _inputs(o)}
    return inputs, {o.op.params[0]: spec(o.op.output, o.settle.before) for o in ops if o.settle and _scatters(o)}


def _inputs(o: OpSharding) -> Iterator[tuple[str, Layout]]:
    """Yield the input of `o` that is gathered along the sequence, and its layout then."""
    for name, move in zip(o.op.inputs, o.redistributions, strict=True):
        if move is not None and any((s.kind, s.dim) == ("all_gather", "sequence") for s in move.steps):
            yield name, move.after


def _scatters(o: OpSharding) -> bool:
    """True if the result of `o` is reduce-scattered along the sequence."""
    steps = o.settle.steps if o.settle else ()
    return any((s.kind, s.dim) == ("reduce_scatter", "sequence") for s in steps)
