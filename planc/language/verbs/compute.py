"""`compute DTYPE [reduce DTYPE]`: the dtype of matmuls and activations, and of gradient reductions."""

from __future__ import annotations

from typing import cast, get_args

from planc.ir.plan import Dtype, Precision
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("compute",)
ORDER = 5

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
TF32 = "tf32"
"""Matmuls of fp32 tensors, whose mantissas tensor cores round to 10 bits."""


def read(sentence: Sentence, draft: Draft) -> None:
    first, *rest = sentence.node.words("NAME")
    compute = draft.one_of(first, (*DTYPES, TF32), "a dtype to compute in")
    reduce = draft.one_of(rest[0], DTYPES, "a dtype to reduce in") if rest else compute
    if compute is None or reduce is None:
        return
    held, added = (cast(Dtype, "fp32" if name == TF32 else name) for name in (compute, reduce))
    cause = draft.cause(sentence)
    draft.precision = Precision(compute=held, reduce=added, products="tf32" if compute == TF32 else "", cause=cause)
