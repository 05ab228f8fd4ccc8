"""`cache`, `requests`, `sync`, `sleep`: sentences of a serve plan, about its KV cache, its load and its weights."""

from __future__ import annotations

from typing import cast

from planc.ir.serving import (
    CACHE_DTYPES,
    OF_GENERATOR,
    OF_TRAINER,
    WEIGHT_DTYPES,
    Asleep,
    CacheDtype,
    KvCache,
    Requests,
    Sleep,
    Sync,
    WeightDtype,
    Weights,
)
from planc.language.draft import MAX_NUMBER, Draft
from planc.language.options import Option, method_name, read_options
from planc.syntax.tree import Sentence, Word

VERBS = ("cache", "requests", "sync", "sleep")
ORDER = 5
BLOCKS = {"float8": {"block": Option()}}
"""Options of the dtypes of weights: elements along each side of a block with one scale."""


def read(sentence: Sentence, draft: Draft) -> None:
    READERS[sentence.verb](sentence, draft)


def _cache(sentence: Sentence, draft: Draft) -> None:
    quantity, *words = sentence.node.parts
    tokens = draft.quantity(quantity, "tokens")
    word = words[0] if words else None
    assert word is None or isinstance(word, Word)
    compute = draft.precision.compute if draft.precision else "bf16"
    usual = "fp16" if compute == "fp16" else "bf16"
    dtype = draft.one_of(word, CACHE_DTYPES, "a dtype of a KV cache") if word else usual
    if tokens is None or dtype is None:
        return
    if not 1 <= tokens <= MAX_NUMBER or tokens != int(tokens):
        draft.report(
            "E0103", quantity.span, f"a cache of {tokens:g} tokens is none", help="such as: cache 256 k tokens"
        )
        return
    draft.kv_cache = KvCache(tokens=int(tokens), dtype=cast(CacheDtype, dtype), cause=draft.cause(sentence))


def _requests(sentence: Sentence, draft: Draft) -> None:
    count, prompt, output = (draft.integer(part) for part in sentence.node.parts)
    if count and prompt and output:
        cause = draft.cause(sentence)
        draft.requests = Requests(count=count, prompt_tokens=prompt, output_tokens=output, cause=cause)


def _sync(sentence: Sentence, draft: Draft) -> None:
    every, *share = sentence.node.parts
    steps, changed = draft.integer(every), draft.quantity(share[0], "share") if share else 1.0
    if steps is None or changed is None:
        return
    if not 0 < changed <= 1:
        help = "the share of the weights' elements that a step changes: above 0 %, at most 100 %"
        draft.report("E0103", share[0].span, f"{changed:.4g} of the elements is no share", help=help)
        return
    draft.sync = Sync(every_steps=steps, changed=changed, cause=draft.cause(sentence))


def _sleep(sentence: Sentence, draft: Draft) -> None:
    of_phase = {"training": OF_GENERATOR, "serving": OF_TRAINER}
    phase = draft.one_of(sentence.node.words("NAME")[0], of_phase, "the side that runs meanwhile")
    if phase is None:
        return
    side = "generator" if phase == "training" else "trainer"
    parts = [draft.one_of(word, of_phase[phase], f"a part of the {side} that can sleep") for word in sentence.names(0)]
    if None in parts:
        return
    found = tuple(cast(Asleep, part) for part in dict.fromkeys(parts))
    draft.sleeps.append(
        Sleep(parts=found, phase="training" if phase == "training" else "serving", cause=draft.cause(sentence))
    )


READERS = {"cache": _cache, "requests": _requests, "sync": _sync, "sleep": _sleep}


def read_weights(sentence: Sentence, draft: Draft) -> None:
    """Add the dtype of the generator's weights from a `store params as DTYPE` of a serve plan to `draft`."""
    method, nouns = sentence.node.node("method"), sentence.names(0)
    if [draft.one_of(word, ("params",), "what a generator stores") for word in nouns] != ["params"]:
        return
    if method is None or sentence.names(1) or sentence.node.words("NAME") or sentence.node.node("in", "for"):
        help = "such as: store params as float8(block = 128)"
        draft.report("E0108", sentence.span, "a generator stores all weights in one dtype, as it uses them", help=help)
        return
    dtype = method_name(method, WEIGHT_DTYPES, "a dtype of weights", draft)
    options = read_options(method, BLOCKS.get(dtype or "", {}), draft) if dtype else None
    if dtype is not None and options is not None:
        block = int(options.get("block", 0))
        draft.weights = Weights(dtype=cast(WeightDtype, dtype), block=block, cause=draft.cause(sentence))
