"""The pipeline of this target: a loop that every rank runs, with stacks of layers divided over the ranks."""

from __future__ import annotations

from planc.ir.plan import Plan

SCHEDULES = ("gpipe", "circular")
"""Schedules that are a loop forwards and, in the backward, the same loop in reverse."""


def pipelined(plan: Plan) -> bool:
    """True if the layers of `plan` lie on more than one rank."""
    return plan.split is not None and plan.pipeline > 1


def chunks(plan: Plan) -> int:
    """Number of separate stages on a rank of `plan`; 1 without a pipeline."""
    return plan.split.chunks if plan.split is not None and pipelined(plan) else 1


def stack_shape(plan: Plan) -> tuple[int, ...]:
    """The leading dims of a parameter of all layers, in the layers' order.

    [layers], or [chunks, layers of one chunk on all ranks]: of these the last one is divided over the ranks,
    so that each has the layers of its stages.
    """
    layers, parts = plan.model.layers, chunks(plan)
    return (layers,) if parts == 1 else (parts, layers // parts)


def stack_axes(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The axes that divide the dims of `stack_shape` of `plan`."""
    if not pipelined(plan):
        return ()
    assert plan.split is not None
    return (*((),) * (len(stack_shape(plan)) - 1), (plan.split.axis,))


def iterations(plan: Plan) -> int:
    """Number of iterations of the loop in a step of `plan`: each rank's microbatches on each of its stages, and the
    ranks before it that start earlier."""
    return chunks(plan) * plan.microbatches + plan.pipeline - 1
