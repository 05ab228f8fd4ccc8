"""`target cuda | xla | none`: the target whose program is costed; by default the one of the cluster's chips.

No layout, mesh or batch depends on this sentence.
"""

from __future__ import annotations

from typing import cast, get_args

from planc.ir.target import NO_TARGET, AnyTarget, Target
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("target",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    word = draft.one_of(sentence.node.words("NAME")[0], (*get_args(Target), NO_TARGET), "a target")
    if word is not None:
        draft.target = cast(AnyTarget, word)
