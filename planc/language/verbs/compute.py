"""`compute DTYPE [reduce DTYPE]`: the dtype of matmuls and activations, and of gradient reductions."""

from __future__ import annotations

from typing import cast, get_args

from planc.ir.plan import Dtype, Precision
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("compute",)
ORDER = 5

DTYPES: tuple[Dtype, ...] = get_args(Dtype)


def read(sentence: Sentence, draft: Draft) -> None:
    names = [draft.one_of(word, DTYPES, "a dtype to compute in") for word in sentence.node.words("NAME")]
    if None not in names:
        compute, reduce = cast(Dtype, names[0]), cast(Dtype, names[-1])
        draft.precision = Precision(compute=compute, reduce=reduce, cause=draft.cause(sentence))
