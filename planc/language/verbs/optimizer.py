"""`optimizer adamw | muon`: the optimizer, which determines the state per parameter. Its hyper-parameters are in the
preset (the settings of a training run)."""

from __future__ import annotations

from typing import Literal, cast, get_args

from planc.ir.plan import Optimizer
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("optimizer",)
ORDER = 5
Name = Literal["adamw", "muon"]


def read(sentence: Sentence, draft: Draft) -> None:
    call = sentence.node.node("call")
    assert call is not None
    args = call.node("args")
    if args is not None and args.parts:
        draft.report("E0109", args.span, "hyper-parameters belong to the preset's [train] table, not to the plan")
        return
    name = draft.one_of(call.words()[0], get_args(Name), "an optimizer that planc compiles")
    if name is not None:
        draft.optimizer = Optimizer(name=cast(Name, name), cause=draft.cause(sentence))
