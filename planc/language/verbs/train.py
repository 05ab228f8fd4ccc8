"""`train for TOKENS tokens`: the number of tokens of the whole run, such as `15 T`."""

from __future__ import annotations

from planc.ir.plan import Train
from planc.language.draft import Draft
from planc.syntax.tree import Node, Sentence

VERBS = ("train",)
ORDER = 5
MOST_TOKENS = 10**15
"""Upper limit of the run's length."""


def read(sentence: Sentence, draft: Draft) -> None:
    """Add the number of training tokens in `sentence` to `draft`."""
    quantity = sentence.node.node("quantity")
    assert isinstance(quantity, Node)
    tokens = draft.quantity(quantity, "tokens")
    if tokens is None:
        return
    if not 1 <= tokens <= MOST_TOKENS:
        draft.report("E0103", quantity.span, f"a run of {tokens:g} tokens is none", help="from 1 to 1000 T tokens")
        return
    draft.train = Train(tokens=round(tokens), cause=draft.cause(sentence))
