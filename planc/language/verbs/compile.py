"""`compile blocks, loss as inductor`: the parts of the model that torch's compiler compiles."""

from __future__ import annotations

from planc.ir.plan import Compile
from planc.language.draft import Draft
from planc.language.options import method_name, read_options
from planc.syntax.tree import Sentence

VERBS = ("compile",)
ORDER = 5
METHODS = ("inductor",)
REGIONS = ("blocks", "loss")


def read(sentence: Sentence, draft: Draft) -> None:
    words = [draft.one_of(w, REGIONS, "a region that is compiled") for w in sentence.names(0)]
    what = dict.fromkeys(w for w in words if w is not None)
    method = sentence.node.node("method")
    name = method_name(method, METHODS, "a compiler", draft) if method else METHODS[0]
    options = read_options(method, {}, draft) if method else {}
    if None not in words and name is not None and options is not None:
        draft.compiles.extend(Compile(what=w, method=name, cause=draft.cause(sentence)) for w in what)
