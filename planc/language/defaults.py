"""Defaults that hold where a plan says nothing: the sentences that it leaves out, as they would be written."""

from __future__ import annotations

from collections.abc import Iterator

from planc.ir.plan import NOUNS, Plan

DECISIVE = ("recompute", "microbatch")
"""Defaults that change seconds or GiB by much: answers name them where they hold."""


def defaults(plan: Plan) -> Iterator[str]:
    """The sentences that `plan` leaves out, in the order of a plan. Written into it they change no figure.

    >>> list(defaults(plan))  # it says what runs again, its optimizer, and how all but gradients are stored
    ['store grads as fp32', 'realise as planc']
    """
    whole = [noun for noun in NOUNS if not any(s.noun == noun and not s.region for s in plan.stores)]
    if whole:
        yield f"store {', '.join(whole)} as fp32"
    if plan.gather is None and plan.store("params"):
        yield f"gather params per {plan.gather_per}"
    if plan.model.top_k and plan.route.cause is None:
        yield f"route experts as {plan.route.method}"
    if plan.optimizer.cause is None:
        yield f"optimizer {plan.optimizer.name}"
    if plan.recompute.cause is None:
        yield "recompute none"
    if plan.realise is None:
        yield f"realise as {plan.framework}"


def completed(text: str, plan: Plan) -> str:
    """The sentence `text` of `plan` with the part that it leaves out: `microbatch 1`, the dtype of reductions."""
    verb, _, rest = text.partition(" ")
    if verb == "batch" and "microbatch" not in rest:
        return f"{text} microbatch {plan.batch.microbatch_sequences}"
    if verb == "compute" and "reduce" not in rest:
        return f"{text} reduce {plan.precision.reduce}"
    return text


def decisive(plan: Plan) -> tuple[str, ...]:
    """Those defaults of `plan` that change seconds or GiB by much, in a few words."""
    left = [s for s in defaults(plan) if s.split()[0] in DECISIVE]
    batch = plan.batch.cause.sentence
    return (*left, *([] if completed(batch, plan) == batch else ["microbatch 1"]))
