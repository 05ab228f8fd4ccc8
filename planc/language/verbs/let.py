"""`let NAME = NUMBER`: an integer that other sentences use and that `--set` replaces."""

from __future__ import annotations

from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("let",)
ORDER = 0


def read(sentence: Sentence, draft: Draft) -> None:
    """Read `let NAME = VALUE` into `draft.params`; a value given with `--set` takes precedence."""
    name = sentence.node.words("NAME")[0]
    value = draft.integer(sentence.node.parts[1])
    if name.text in draft.params:
        draft.report("E0107", name.span, f"`{name.text}` is given twice")
    elif value is not None:
        draft.params[name.text] = draft.given.get(name.text, value)
