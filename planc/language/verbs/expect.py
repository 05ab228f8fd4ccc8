"""`expect METRIC <= VALUE` and `expect no CODE`: a condition that is checked after costing."""

from __future__ import annotations

from typing import Literal, cast

from planc.ir.plan import Expect, ExpectNo
from planc.language.draft import Draft
from planc.language.verbs.price import currency
from planc.syntax.tree import Node, Sentence

VERBS = ("expect", "expect_no", "expect_tokens")
ORDER = 5

METRICS: dict[str, str] = {
    "memory": "memory",
    "step_time": "time",
    "mfu": "share",
    "bubble": "share",
    "exposed_comm": "share",
    "days": "count",
    "device_hours": "count",
    "price": "money",
}
"""Quantity of each metric. `bubble` and `exposed_comm` are shares of the step's time; `days`, `device_hours` and
`price` are of the whole run (`train for`)."""
OF_SERVING = {"cache": "tokens", "memory": "memory", "sync_time": "time"}
"""Quantity of each metric of a serve plan. `cache`: tokens of one replica's cache that fit."""


def read(sentence: Sentence, draft: Draft) -> None:
    words = sentence.node.words()
    if sentence.verb == "expect_no":
        draft.expects_no.append(ExpectNo(code=words[0].text, cause=draft.cause(sentence)))
        return
    metrics = METRICS if draft.trainer is None else OF_SERVING
    metric = draft.one_of(words[0], metrics, "a metric of the report")
    quantity = sentence.node.node("quantity")
    assert isinstance(quantity, Node)
    value = draft.quantity(quantity, metrics[metric]) if metric else None
    if metric and (metrics[metric] == "tokens") != (sentence.verb == "expect_tokens"):
        help = "such as: expect cache >= 200 k tokens"
        draft.report("E0103", quantity.span, f"`{metric}` is not compared like this", help=help)
        return
    if metric and value is not None:
        draft.expects.append(
            Expect(
                metric=metric,
                cmp=cast(Literal["<=", ">=", "<", ">"], words[1].text),
                value=value,
                text=" ".join(w.text for w in quantity.all_words()),
                currency=currency(quantity),
                cause=draft.cause(sentence),
            )
        )
