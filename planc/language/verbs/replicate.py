"""`replicate DIM, ... over AXIS, ... [in REGION]`: exempts a dim from being sharded over these axes, in a region or in
the whole model."""

from __future__ import annotations

from planc.ir.plan import Replicate
from planc.language.draft import Draft
from planc.language.verbs.shard import SHARDED, has_dim, no_such_dim
from planc.syntax.tree import Sentence

VERBS = ("replicate",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    axes = draft.axes(sentence.names(1))
    regions = draft.regions(sentence)
    dims = [draft.one_of(word, SHARDED, "a dim that can be kept whole") for word in sentence.names(0)]
    if axes is None or regions is None or None in dims:
        return
    cause = draft.cause(sentence)
    for dim, word in zip(dims, sentence.names(0), strict=True):
        if dim and has_dim(dim, draft):
            draft.replicates += [Replicate(dim=dim, axes=axes, region=region, cause=cause) for region in regions]
        elif dim and sentence.via is None:  # a shorthand speaks of every model; this one has nothing to keep whole
            no_such_dim(word, draft, sentence)
