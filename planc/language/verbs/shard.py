"""`shard DIM, ... over AXIS, ... [in REGION]`: shards every tensor that has a dim of that name."""

from __future__ import annotations

from planc.diag.diagnostic import Edit, Fix
from planc.ir.dims import CARRIED, DIMS
from planc.ir.plan import Shard
from planc.language.draft import Draft
from planc.language.precedence import whole_line
from planc.syntax.tree import Sentence, Word

VERBS = ("shard",)
ORDER = 5
SHARDED = tuple(d for d in DIMS if d != "layers")
"""Dims that can be sharded; layers are split over a pipeline instead."""


def read(sentence: Sentence, draft: Draft) -> None:
    axes = draft.axes(sentence.names(1))
    regions = draft.regions(sentence)
    dims = [draft.one_of(word, SHARDED, "a dim that is sharded") for word in sentence.names(0)]
    if axes is None or regions is None:
        return
    known = [d for d in dims if d and has_dim(d, draft)]
    for dim, word in zip(dims, sentence.names(0), strict=True):
        if sentence.via is not None and known and dim not in known:
            continue  # a shorthand speaks of every model; this one has no such dim
        for carried in CARRIED.get(dim, (dim,)) if dim else ():
            if has_dim(carried, draft):
                _add(sentence, carried, axes, regions, draft)
            elif carried == dim:
                no_such_dim(word, draft, sentence)


def has_dim(dim: str, draft: Draft) -> bool:
    """True if the model has tensors with the dim `dim`. Every model has the dims batch and sequence."""
    return dim in ("batch", "sequence") or (draft.model is not None and dim in draft.model.sizes)


def no_such_dim(word: Word, draft: Draft, sentence: Sentence) -> None:
    """Report E0108: the model has no dim `word`, which `sentence` names, or the layout that it is from. Nothing is
    reported if the model itself could not be read."""
    if draft.model is not None and sentence.via is not None:
        said = f"{draft.model.name} has no {word.text}, which `{sentence.via.text}` divides"
        fix = Fix("remove this sentence", (Edit(whole_line(sentence.via.span), ""),))
        draft.report("E0108", sentence.via.span, said, help="leave the sentence out, or name another model", fix=fix)
    elif draft.model is not None:
        draft.unknown(word, ["batch", "sequence", *draft.model.sizes], f"a dim of {draft.model.name}")


def _add(sentence: Sentence, dim: str, axes: tuple[str, ...], regions: list[str], draft: Draft) -> None:
    cause = draft.cause(sentence)
    draft.shards += [Shard(dim=dim, axes=axes, region=region, cause=cause) for region in regions]
