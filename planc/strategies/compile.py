"""`compile blocks as inductor`: what the target's own compiler takes as one region."""

from __future__ import annotations

from planc.ir.plan import Compile
from planc.strategies.draft import Draft
from planc.strategies.options import method_name, read_options
from planc.syntax.tree import Sentence

VERBS = ("compile",)
ORDER = 5
METHODS = ("inductor",)


def read(sentence: Sentence, draft: Draft) -> None:
    what = [draft.one_of(w, ("blocks",), "a region that is compiled") for w in sentence.names(0)]
    method = sentence.node.node("method")
    name = method_name(method, METHODS, "a compiler", draft) if method else METHODS[0]
    options = read_options(method, {}, draft) if method else {}
    if None not in what and name is not None and options is not None:
        draft.compiles.append(Compile(what="blocks", method=name, cause=draft.cause(sentence)))
