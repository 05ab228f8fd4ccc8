"""`gather params per pass | microbatch | step`: how long gathered parameters are kept."""

from __future__ import annotations

from typing import cast, get_args

from planc.ir.plan import Gather, Period
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("gather",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    noun = draft.one_of(sentence.names(0)[0], ("params",), "a noun that is gathered")
    per = draft.one_of(sentence.node.words("NAME")[0], get_args(Period), "a period")
    if noun and per:
        draft.gather = Gather(per=cast(Period, per), cause=draft.cause(sentence))
