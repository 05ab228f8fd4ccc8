"""`gather params per pass | microbatch | step [bucket N layers] [prefetch N layers]`: when sharded parameters are
all-gathered."""

from __future__ import annotations

from typing import cast, get_args

from planc.ir.plan import Gather, Period
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("gather",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    noun = draft.one_of(sentence.names(0)[0], ("params",), "a noun that is gathered")
    per = draft.one_of(sentence.node.words("NAME")[0], get_args(Period), "a period")
    bucket, prefetch = _layers(sentence, "bucket", draft), _layers(sentence, "prefetch", draft)
    if noun and per and bucket is not None and prefetch is not None:
        draft.gather = Gather(per=cast(Period, per), bucket=bucket or 1, prefetch=prefetch, cause=draft.cause(sentence))


def _layers(sentence: Sentence, word: str, draft: Draft) -> int | None:
    """Return the number after `word` (`bucket` or `prefetch`); 0 if it is omitted, None (reported) if it is not
    valid."""
    said = sentence.node.node(word)
    return draft.integer(said.parts[0]) if said else 0
