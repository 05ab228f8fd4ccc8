"""`compute DTYPE [reduce DTYPE]`: the dtype of matmuls and activations, and of gradient reductions."""

from __future__ import annotations

from planc.ir.plan import Precision
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("compute",)
ORDER = 5

DTYPES = ("fp32", "bf16")


def read(sentence: Sentence, draft: Draft) -> None:
    names = [draft.one_of(word, DTYPES, "a dtype to compute in") for word in sentence.node.words("NAME")]
    if None not in names:
        compute, reduce = str(names[0]), str(names[-1])
        draft.precision = Precision(compute=compute, reduce=reduce, cause=draft.cause(sentence))
