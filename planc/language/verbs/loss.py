"""`loss in N chunks`: the head and the loss of a microbatch, one part of its tokens after another."""

from __future__ import annotations

from planc.ir.plan import ChunkedLoss
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("loss",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    said = sentence.node.parts[-1]
    if draft.free(said, "the number of the loss's chunks"):
        return
    chunks = draft.integer(said)
    if chunks is not None:
        draft.chunked_loss = ChunkedLoss(chunks=chunks, cause=draft.cause(sentence))
