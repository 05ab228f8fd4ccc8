"""`route experts as dropless | capacity(factor = F)`: how tokens are dispatched to experts."""

from __future__ import annotations

from typing import Literal, cast, get_args

from planc.ir.field_types import Within
from planc.ir.plan import Copies, Route
from planc.language.draft import Draft
from planc.language.options import Option, method_name, read_options
from planc.syntax.tree import Sentence

VERBS = ("route",)
ORDER = 5
SENDS = {"node_limit": Option(), "copies": Option(words=get_args(Copies))}
OPTIONS = {"dropless": SENDS, "capacity": {"factor": Option(fraction=True), **SENDS}}

FACTORS = Within(1e-3, 1000)
"""Legal capacity factors: the slots of an expert over its even share of the tokens."""


def read(sentence: Sentence, draft: Draft) -> None:
    what = draft.one_of(sentence.node.words("NAME")[0], ("experts",), "what is routed")
    method = sentence.node.node("method")
    assert method is not None
    name = method_name(method, tuple(OPTIONS), "a way to route", draft)
    options = read_options(method, OPTIONS[name], draft) if name else None
    if what is None or options is None or draft.model is None:
        return
    if not draft.model.top_k:
        draft.report("E0108", sentence.span, f"{draft.model.name} has no experts to route to", help="leave it out")
        return
    factor = float(options.get("factor", 1.0))
    if not FACTORS.holds(factor):
        draft.report("E0103", method.span, f"factor = {factor:g}: an expert's room is 0.001 to 1000 shares")
        return
    draft.route = Route(
        method=cast(Literal["dropless", "capacity"], name),
        factor=factor,
        node_limit=int(options.get("node_limit", 0)),
        copies=cast(Copies, options.get("copies", "choice")),
        cause=draft.cause(sentence),
    )
