"""`batch SEQUENCES x TOKENS tokens [microbatch N]`: the global batch of one optimizer step."""

from __future__ import annotations

from planc.ir.plan import Batch
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("batch",)
ORDER = 2


def read(sentence: Sentence, draft: Draft) -> None:
    whats = ("the number of sequences", "the number of tokens", "the microbatch")
    parts = list(zip(sentence.node.parts, whats, strict=False))
    numbers = [None if draft.free(part, what) else draft.integer(part) for part, what in parts]
    if None in numbers:
        return
    sequences, tokens, microbatch = [*numbers, 1][:3]
    assert sequences is not None and tokens is not None and microbatch is not None
    draft.batch = Batch(
        sequences=sequences,
        sequence_tokens=tokens,
        microbatch_sequences=microbatch,
        cause=draft.cause(sentence),
    )
