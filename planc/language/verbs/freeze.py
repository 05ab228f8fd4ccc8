"""`freeze PART, ... [except PART, ...]`: parameters that are not trained."""

from __future__ import annotations

from planc.ir.plan import Freeze
from planc.language.draft import Draft
from planc.language.fine_tuning import PARTS
from planc.language.op_names import read_op_names
from planc.syntax.tree import Sentence, Word

VERBS = ("freeze",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    spared = sentence.node.node("except_ops", "except_layers")
    ranges = spared.node("ranges") if spared else None
    if ranges is not None:
        draft.report("E0109", ranges.span, "planc does not compile layer numbers after `freeze` yet")
        return
    parts = _parts(sentence.names(0), draft)
    kept = _parts(spared.nodes("names")[0].words() if spared else [], draft)
    if parts is not None and kept is not None:
        draft.freeze = Freeze(parts=parts, kept=kept, cause=draft.cause(sentence))


def _parts(words: list[Word], draft: Draft) -> tuple[str, ...] | None:
    if draft.model is None:
        return None
    ops = [op for ops in draft.model.ops.values() for op in ops if op.params]
    return read_op_names(words, ops, f"an op of {draft.model.name} with parameters", draft, PARTS)
