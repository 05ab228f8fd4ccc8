"""`recompute none | blocks | OP, ...`: what the backward runs again instead of keeping."""

from __future__ import annotations

from planc.ir.plan import Recompute
from planc.sharding.replay import names_op
from planc.strategies.draft import Draft
from planc.syntax.tree import Sentence, Word

VERBS = ("recompute",)
ORDER = 4


def read(sentence: Sentence, draft: Draft) -> None:
    extra = [p for p in sentence.node.parts if p.span and (isinstance(p, Word) or p.kind != "names")]
    if extra:
        draft.report("E0109", extra[0].span, "planc does not compile `every` and `except` after `recompute` yet")
        return
    words = sentence.names(0)
    if len(words) == 1 and words[0].text in ("none", "blocks"):
        ops = () if words[0].text == "none" else ("blocks",)
        draft.recompute = Recompute(ops=ops, cause=draft.cause(sentence))
    elif draft.model is not None and False not in [_known(word, draft) for word in words]:
        draft.recompute = Recompute(ops=tuple(w.text for w in words), cause=draft.cause(sentence))


def _known(word: Word, draft: Draft) -> bool:
    assert draft.model is not None
    block = draft.model.ops["block"]
    legal = ["none", "blocks", *(op.name for op in block)]
    named = [word.text] if any(names_op(word.text, op) for op in block) else []
    return draft.one_of(word, [*legal, *named], f"an op of {draft.model.name}") is not None
