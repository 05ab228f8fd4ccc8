"""`attention.core as METHOD`: the attention kernel, the context-parallel method, or both."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

from planc.ir.plan import PASSES_KEYS, Kernel, NamedKernel
from planc.language.draft import Draft
from planc.language.options import Option, method_name, read_options
from planc.syntax.tree import Sentence

VERBS = ("attention",)
ORDER = 5

BALANCE = Option(words=("headtail", "none"))
OPTIONS: dict[str, dict[str, Option]] = {
    "ring": {"balance": BALANCE, "rotate": Option(words=("p2p", "alltoall"))},
    "all_gather": {"balance": BALANCE},
    "flash": {},
    "triton": {},
    "unfused": {},
    "cudnn": {},
    "efficient": {},
    "flex": {},
    "splash": {"block": Option()},
}


def read(sentence: Sentence, draft: Draft) -> None:
    method = sentence.node.node("method")
    assert method is not None
    name = method_name(method, tuple(OPTIONS), "a way to do attention", draft)
    options = read_options(method, OPTIONS[name], draft) if name else None
    if name is None or options is None:
        return
    made = Kernel(
        method=name,
        balance=cast(Literal["headtail", "none"], options.get("balance", "headtail")),
        rotate=cast(Literal["p2p", "alltoall"], options.get("rotate", "p2p")),
        block=int(options.get("block", 0)),
        cause=draft.cause(sentence),
    )
    draft.attention = _together(draft.attention, made) if draft.attention else made


def role(sentence: Sentence) -> str:
    """Return the decision that `sentence`, an `attention.core`, makes: the context-parallel method, by which a rank
    gets the keys of other ranks, or the kernel. A plan may have a sentence for each."""
    method = sentence.node.node("method")
    words = method.words() if method else []
    return "how attention meets keys" if words and words[0].text in PASSES_KEYS else "attention"


def _together(one: Kernel, other: Kernel) -> Kernel:
    """Combine a context-parallel method and a kernel, given in either order."""
    meets, kernel = (one, other) if one.method in PASSES_KEYS else (other, one)
    return replace(meets, block=kernel.block, kernel=NamedKernel(method=kernel.method, cause=kernel.cause))
