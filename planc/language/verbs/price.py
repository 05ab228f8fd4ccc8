"""`price AMOUNT per device hour` (or `chip`, `node`): the hourly price of each device, in a plan or a hardware file.

The price in the plan takes precedence over the price in the hardware file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

from planc.ir.plan import Price, Priced
from planc.language.draft import Draft
from planc.language.units import CURRENCIES
from planc.syntax.tree import Node, Sentence

VERBS = ("price",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    """Add the price to `draft`, where it replaces the price in the hardware file."""
    draft.price = price(sentence, draft) or draft.price


def price(sentence: Sentence, draft: Draft) -> Price | None:
    """Return the price in `sentence`; None (reported) if the sentence has a mistake."""
    quantity = sentence.node.node("quantity")
    assert isinstance(quantity, Node)
    amount = draft.quantity(quantity, "money")
    per = draft.one_of(sentence.node.words("NAME")[0], get_args(Priced), "a thing that is paid by the hour")
    if amount is None or per is None:
        return None
    if amount < 0:
        draft.report("E0103", quantity.span, "a price is not below 0")
        return None
    return Price(per_hour=amount, currency=currency(quantity), per=cast(Priced, per), cause=draft.cause(sentence))


def currency(quantity: Node) -> str:
    """Return the currency of `quantity`, an amount of money: `USD` for `2 MUSD`; "" if it has none."""
    unit = next((w.text for w in quantity.words("UNIT")), "")
    return unit[-3:] if unit[-3:] in CURRENCIES else ""


def of_hardware(declared: Iterable[Sentence], draft: Draft) -> Price | None:
    """Return the price that a hardware file, with the sentences `declared`, gives; None if there is none or (reported)
    if it has a mistake."""
    found = next((s for s in declared if s.verb == "price"), None)
    return None if found is None else price(found, draft)
