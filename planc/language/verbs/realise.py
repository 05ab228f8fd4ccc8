"""`realise as FRAMEWORK`: the framework whose defaults apply where the plan has no sentence."""

from __future__ import annotations

from planc.frameworks import NAMES
from planc.ir.plan import RealisedAs
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("realise",)
ORDER = 0
"""Read first, since `recompute selective` depends on the framework."""


def read(sentence: Sentence, draft: Draft) -> None:
    name = draft.one_of(sentence.node.words("NAME")[0], NAMES, "a framework that planc knows")
    if name is not None:
        draft.realise = RealisedAs(framework=name, cause=draft.cause(sentence))
