"""Sums of gradients in two steps: over the ranks that share them, and then over those that hold copies.

A compiler that is given one sum over both and a result that is divided over the first makes a reduce-scatter of it and
an all-reduce of its parts; that of TPU 7x sums the whole on every rank. Read from one sum each of 13 layouts of v4,
v5e, v5p and v6e and of 10 of 7x (2 to 8 copies, 4 to 64 ranks that share, with tp and without): 13 and none in parts.
"""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import own_gradient
from planc.backends.xla.analysis.narrow_products import narrow_params
from planc.backends.xla.analysis.pipeline import pipelined
from planc.ir.sharding import Sharded

SUMS_WHOLE = ("tpu7x",)
"""Chips whose compiler sums over sharers and copies at once."""


def sums_whole(sharded: Sharded) -> bool:
    """True if the compiler of the plan in `sharded` sums a gradient whole where it is divided over some of its sum's
    ranks and copied over others, unless the program says otherwise."""
    cluster = sharded.plan.cluster
    return cluster.has_tpus and cluster.chip.name in SUMS_WHOLE


def copies_summed_last(sharded: Sharded) -> tuple[str, ...]:
    """The axes of the batch whose ranks hold copies of the gradients of matmuls, over which the program sums these
    after the ranks that share them; () where it sums once.

    Once it is in a pipeline, where matmuls are narrow, where no rank of the batch shares gradients, where rows of a
    sequence are divided over ranks that do not, with parameters that lie where a sentence puts them by themselves, and
    where `linear` has no backward of its own.
    """
    plan = sharded.plan
    shared = {*plan.store("grads")}
    apart = not shared.isdisjoint(plan.data_axes) and shared.issuperset(plan.mesh.in_order(plan.axes_of("sequence")))
    once = pipelined(plan) or plan.overrides or narrow_params(sharded)
    if not sums_whole(sharded) or not apart or not own_gradient(plan) or once:
        return ()
    return tuple(a for a in plan.mesh.in_order(plan.data_axes) if a not in shared)
