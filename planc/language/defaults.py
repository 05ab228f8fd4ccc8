"""Defaults of a plan: the sentences that a plan omits, written out."""

from __future__ import annotations

from collections.abc import Iterator

from planc.ir.plan import NOUNS, Plan

DECISIVE = ("recompute", "microbatch")
"""Defaults that change seconds or GiB considerably: answers mention them if they apply."""


def defaults(plan: Plan) -> Iterator[str]:
    """Yield the sentences that `plan` omits, in the usual order of a plan. Adding them changes no predicted figure.

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
    """Return the sentence `text` with its omitted clause: `microbatch 1` after a batch, `reduce DTYPE` after
    `compute`."""
    verb, _, rest = text.partition(" ")
    if verb == "batch" and "microbatch" not in rest:
        return f"{text} microbatch {plan.batch.microbatch_sequences}"
    if verb == "compute" and "reduce" not in rest:
        return f"{text} reduce {plan.precision.reduce}"
    return text


def decisive(plan: Plan) -> tuple[str, ...]:
    """Return the sentences or clauses that `plan` omits and whose defaults affect the predicted time or memory most: no
    recompute, and a microbatch of one sequence."""
    left = [s for s in defaults(plan) if s.split()[0] in DECISIVE]
    batch = plan.batch.cause.sentence
    return (*left, *([] if completed(batch, plan) == batch else ["microbatch 1"]))
