"""`attention.core as METHOD`: the kernel of attention, or how it meets keys that other ranks hold."""

from __future__ import annotations

from typing import Literal, cast

from planc.ir.plan import Kernel
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
    draft.attention = Kernel(
        method=name,
        balance=cast(Literal["headtail", "none"], options.get("balance", "headtail")),
        rotate=cast(Literal["p2p", "alltoall"], options.get("rotate", "p2p")),
        block=int(options.get("block", 0)),
        cause=draft.cause(sentence),
    )
