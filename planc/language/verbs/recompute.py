"""`recompute none | selective | blocks | whole_blocks | OP, ... [except OP, ...] [every N layers]`: the ops that the
backward recomputes."""

from __future__ import annotations

from planc.frameworks import OWN, policy_of
from planc.ir.plan import Recompute
from planc.language.draft import Draft
from planc.language.op_names import covering, read_op_names
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("recompute",)
ORDER = 6
ALL = ("none", "selective", "blocks", "whole_blocks")
"""Words that cannot be combined with others."""


def read(sentence: Sentence, draft: Draft) -> None:
    if draft.free(sentence.node.parts[0], "what is recomputed"):
        return
    layers = sentence.node.node("except_layers") or _layer_ranges(sentence)
    if layers is not None:
        draft.report("E0109", layers.span, "planc does not compile layer numbers after `recompute` yet")
        return
    ops, kept, every = _ops(sentence.names(0), draft), _saved_ops(sentence, draft), _layer_period(sentence, draft)
    if ops is not None and kept is not None and every is not None:
        draft.recompute = Recompute(ops=ops, kept=kept, every=every, cause=draft.cause(sentence))


def _layer_ranges(sentence: Sentence) -> Node | None:
    spared = sentence.node.node("except_ops")
    return spared.node("ranges") if spared else None


def _ops(words: list[Word], draft: Draft) -> tuple[str, ...] | None:
    if len(words) == 1 and words[0].text in ALL:
        return _selected(draft) if words[0].text == "selective" else () if words[0].text == "none" else (words[0].text,)
    alone = next((w for w in words if w.text in ALL), None)
    if alone is not None:
        draft.report("E0108", alone.span, f"`{alone.text}` stands alone after `recompute`", help="or name ops")
        return None
    return _named(words, draft, ALL)


def _selected(draft: Draft) -> tuple[str, ...] | None:
    if draft.model is None:
        return None
    rules = policy_of(draft.realise.framework if draft.realise else OWN)
    kernel = draft.attention.method if draft.attention else ""
    if not kernel and draft.cluster is not None:
        kernel = rules.attention_kernel(draft.cluster.chip.name)
    ops = [op for kind in draft.model.blocks for op in draft.model.ops[kind]]
    return tuple(covering(rules.selective(draft.model, kernel), ops))


def _saved_ops(sentence: Sentence, draft: Draft) -> tuple[str, ...] | None:
    spared = sentence.node.node("except_ops")
    return _named(spared.nodes("names")[0].words(), draft) if spared else ()


def _layer_period(sentence: Sentence, draft: Draft) -> int | None:
    """Return the number after `every`; 1 if the sentence has none."""
    # All other parts of the sentence are lists of names.
    numbers = [p for p in sentence.node.parts if isinstance(p, Word) or p.kind not in ("names", "except_ops")]
    return draft.integer(numbers[0]) if numbers else 1


def _named(words: list[Word], draft: Draft, keywords: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    if draft.model is None:
        return None
    ops = [op for kind in draft.model.blocks for op in draft.model.ops[kind]]
    return read_op_names(words, ops, f"an op of {draft.model.name}", draft, keywords)
