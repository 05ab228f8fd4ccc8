"""`offload WHAT, ... to host`: keeps optimizer state, parameters or saved activations in the host's memory."""

from __future__ import annotations

from planc.ir.model import Model
from planc.ir.plan import Offload
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

VERBS = ("offload",)
ORDER = 5
STATE = ("params", "optimizer")


def read(sentence: Sentence, draft: Draft) -> None:
    to = draft.one_of(sentence.node.words("NAME")[0], ("host",), "a place to offload to")
    if draft.model is None:
        return
    what = [draft.one_of(w, movable(draft.model), "state or a tensor of a block") for w in sentence.names(0)]
    if to is not None and None not in what:
        draft.offloads.append(Offload(what=tuple(w for w in what if w), cause=draft.cause(sentence)))


def movable(model: Model) -> dict[str, None]:
    """Return the names that `offload` can take: kinds of state, and activations of the blocks of `model`. All values
    are None."""
    ops = [op for kind in model.blocks for op in model.ops[kind]]
    return dict.fromkeys((*STATE, *(t for op in ops for t in op.saves), *(op.output for op in ops)))
