"""`optimizer adamw`: what state each parameter needs. Its hyper-parameters are the preset's."""

from __future__ import annotations

from planc.ir.plan import Optimizer
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("optimizer",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    call = sentence.node.node("call")
    assert call is not None
    args = call.node("args")
    if args is not None and args.parts:
        draft.report("E0109", args.span, "hyper-parameters belong to the preset's [train] table, not to the plan")
    elif draft.one_of(call.words()[0], ("adamw",), "an optimizer that planc compiles"):
        draft.optimizer = Optimizer(name="adamw", cause=draft.cause(sentence))
