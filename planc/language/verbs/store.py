"""`store NOUN, ... [as DTYPE] [over AXIS, ... [on DIM]] [for REGION]`: the dtype of parameters, gradients or optimizer
state, and the axes that shard them."""

from __future__ import annotations

from planc.ir.collective import DTYPE_BYTES
from planc.ir.dims import DIMS
from planc.ir.plan import NOUNS, Store
from planc.language.draft import Draft
from planc.language.options import method_name, read_options
from planc.language.verbs.serving import read_weights
from planc.syntax.tree import Sentence

VERBS = ("store",)
ORDER = 5
DTYPES = tuple(d for d in DTYPE_BYTES if not d.startswith("int"))
"""Dtypes in which state may be stored."""


def read(sentence: Sentence, draft: Draft) -> None:
    if draft.trainer is not None:
        read_weights(sentence, draft)
        return
    nouns = [draft.one_of(word, NOUNS, "a noun that is stored") for word in sentence.names(0)]
    axes = draft.axes(sentence.names(1))
    dtype = _dtype(sentence, draft)
    on = sentence.node.words("NAME")
    dim = draft.one_of(on[0], DIMS, "a tensor dim") if on else ""
    regions = draft.regions(sentence)
    if axes is None or dtype is None or dim is None or regions is None:
        return
    cause = draft.cause(sentence)
    draft.stores += [
        Store(noun=noun, dtype=dtype, axes=axes, dim=dim, region=region, cause=cause)
        for noun in NOUNS
        if noun in nouns
        for region in regions
    ]


def _dtype(sentence: Sentence, draft: Draft) -> str | None:
    method = sentence.node.node("method")
    if method is None:
        return ""
    dtype = method_name(method, DTYPES, "a dtype", draft)
    return None if dtype is None or read_options(method, {}, draft) is None else dtype
