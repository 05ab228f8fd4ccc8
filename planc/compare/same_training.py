"""Decide if two plans train to the same losses, apart from rounding.

Layouts, microbatches, recomputation and kernels change only the order of sums. The model, the tokens per step, dtypes
and dropped tokens change the losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause
from planc.ir.plan import NOUNS, Plan


@dataclass(frozen=True, kw_only=True)
class Apart:
    """One reason why losses differ: the values in plans A and B, and the sentences that set them ("" for a default)."""

    what: str
    a: str
    b: str
    sentence_a: str
    sentence_b: str


def apart(one: Plan, other: Plan) -> list[Apart]:
    """Return all reasons why the losses of `one` and `other` are not comparable; [] if they are."""
    return [
        *_model(one, other),
        *_batch(one, other),
        *_updates(one, other),
        *_rounding(one, other),
        *_dropped(one, other),
        *_reason("optimizer", (one.optimizer.name, other.optimizer.name), (one.optimizer.cause, other.optimizer.cause)),
    ]


def _reason(what: str, values: tuple[Any, Any], causes: tuple[Cause | None, Cause | None]) -> Iterator[Apart]:
    if values[0] != values[1]:
        a, b = (str(v) for v in values)
        yield Apart(what=what, a=a, b=b, sentence_a=_sentence(causes[0]), sentence_b=_sentence(causes[1]))


def _sentence(cause: Cause | None) -> str:
    return " ".join(cause.sentence.split()) if cause else ""


def _model(one: Plan, other: Plan) -> Iterator[Apart]:
    causes = (one.model.cause, other.model.cause)
    yield from _reason("model", (one.model.name, other.model.name), causes)
    if one.model.name == other.model.name:
        changed = {d for d in {**one.model.sizes, **other.model.sizes} if _size(one, d) != _size(other, d)}
        for dim in sorted(changed):
            yield from _reason(dim, (_size(one, dim), _size(other, dim)), causes)
        if not changed and _arithmetic(one) != _arithmetic(other):
            yield from _reason("model", ("one set of ops", "another"), causes)


def _size(plan: Plan, dim: str) -> int | None:
    return plan.model.sizes.get(dim)


def _arithmetic(plan: Plan) -> dict[str, Any]:
    return {name: value for name, value in plan.model.to_json().items() if name != "cause"}


def _batch(one: Plan, other: Plan) -> Iterator[Apart]:
    causes = (one.batch.cause, other.batch.cause)
    yield from _reason("sequences of a step", (one.batch.sequences, other.batch.sequences), causes)
    yield from _reason("tokens of a sequence", (one.batch.sequence_tokens, other.batch.sequence_tokens), causes)


def _rounding(one: Plan, other: Plan) -> Iterator[Apart]:
    causes = (one.precision.cause, other.precision.cause)
    yield from _reason("compute dtype", (one.precision.multiplied, other.precision.multiplied), causes)
    yield from _reason("reduction dtype", (one.precision.reduce, other.precision.reduce), causes)
    regions = dict.fromkeys(["", *(s.region for p in (one, other) for s in p.stores)])
    for noun in NOUNS:
        for region in regions:
            dtypes = (one.store_dtype(noun, region), other.store_dtype(noun, region))
            found = [next((s.cause for s in p.stores if s.noun == noun and s.dtype), None) for p in (one, other)]
            yield from _reason(f"dtype of stored {noun}", dtypes, (found[0], found[1]))
    narrow = [[" ".join(q.cause.sentence.split()) for q in p.quantize] for p in (one, other)]
    first = [next((q.cause for q in p.quantize), None) for p in (one, other)]
    yield from _reason("quantized matmuls", (_list(narrow[0]), _list(narrow[1])), (first[0], first[1]))


def _updates(one: Plan, other: Plan) -> Iterator[Apart]:
    """Compare the scale of low-rank updates (LoRA)."""
    said = [f"alpha {p.lora.alpha}" if p.lora else "none" for p in (one, other)]
    found = [p.lora.cause if p.lora else None for p in (one, other)]
    yield from _reason("low-rank updates", (said[0], said[1]), (found[0], found[1]))


def _list(words: Iterable[str]) -> str:
    return "; ".join(words) or "none"


def _dropped(one: Plan, other: Plan) -> Iterator[Apart]:
    """Compare the tokens that experts drop: those beyond their capacity for each rank that shards the sequence."""
    if not (one.model.top_k and other.model.top_k):
        return
    routes = (_expert_capacity(one), _expert_capacity(other))
    yield from _reason("tokens that experts drop", routes, (one.route.cause, other.route.cause))


def _expert_capacity(plan: Plan) -> str:
    if plan.route.method == "dropless":
        return "none"
    parts = plan.mesh.size(*plan.axes_of("sequence", "residual"))
    tokens = plan.batch.microbatch_sequences * plan.batch.sequence_tokens // parts
    return f"those beyond {plan.route.factor:g} times an even share of a rank's {tokens:,}"
