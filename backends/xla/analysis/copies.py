"""Two-step gradient sums: first over the ranks that shard a gradient, then over the ranks that replicate it.

If a program asks for one sum over all these ranks with a sharded result, most compilers emit a reduce-scatter and an
all-reduce of the shards; the compiler for TPU 7x all-reduces the whole gradient on every rank. Read from compiled
programs: the sum is split in 13 of 13 layouts of v4, v5e, v5p and v6e, and in 0 of 10 of 7x (2 to 8 replicas, 4 to 64
shards, with and without tp).
"""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import own_gradient
from planc.backends.xla.analysis.narrow_products import narrow_params
from planc.backends.xla.analysis.pipeline import pipelined
from planc.ir.sharding import Sharded

SUMS_WHOLE = ("tpu7x",)
"""Chips whose compiler all-reduces the whole gradient over shards and replicas at once."""


def sums_whole(sharded: Sharded) -> bool:
    """True if the plan in `sharded` is for a chip (TPU 7x) whose compiler all-reduces whole gradients, where other
    compilers emit a reduce-scatter and an all-reduce of the shards."""
    cluster = sharded.plan.cluster
    return cluster.has_tpus and cluster.chip.name in SUMS_WHOLE


def copies_summed_last(sharded: Sharded) -> tuple[str, ...]:
    """Return the batch axes that replicate the gradients of matmuls. The program sums over these axes after the axes
    that shard gradients; () if it sums over all axes at once.

    It sums over all axes at once if the compiler splits the sum (not `sums_whole`), in a pipeline, with low-precision
    matmuls, if no data-parallel rank shards gradients, if an axis shards the sequence but not gradients, if the plan
    gives some parameter a layout of its own, and if `linear` has no custom backward.
    """
    plan = sharded.plan
    shared = {*plan.store("grads")}
    apart = not shared.isdisjoint(plan.data_axes) and shared.issuperset(plan.mesh.in_order(plan.axes_of("sequence")))
    once = pipelined(plan) or plan.overrides or narrow_params(sharded)
    if not sums_whole(sharded) or not apart or not own_gradient(plan) or once:
        return ()
    return tuple(a for a in plan.mesh.in_order(plan.data_axes) if a not in shared)
