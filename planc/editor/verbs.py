"""The one-line manual of each verb: the first line of the docstring of the module that reads it."""

from __future__ import annotations

import sys
from functools import cache

from planc.language.verbs import readers
from planc.syntax.lines import VERBS

OTHERS = {
    "plan": "`plan NAME`: the file is a plan.",
    "layout": "`layout NAME over AXES [as NAME = METHOD]`: the sentences that `use NAME` stands for.",
    "hardware": "`hardware NAME`: chips, links, nodes, networks and tori, for `cluster`.",
    "serve": '`serve NAME of "train.plan"`: a generator that serves the weights of a training plan.',
    "on": "`on cuda: SENTENCE` or `on xla: SENTENCE`: a sentence for one target alone.",
    "import": '`import "FILE"`: hardware and layouts of one\'s own, from the folder of the plan or below.',
    "use": "`use LAYOUT over AXES [as METHOD]`: the sentences of a layout, with its axes replaced by the plan's.",
    "chip": "`chip NAME(FIELD = QUANTITY, ...)`: one accelerator: peak rates by dtype, memory, efficiencies.",
    "link": "`link NAME(bandwidth = ..., latency = ...)`: a link between chips; one way.",
    "node": "`node NAME = N x CHIP over LINK`: a machine of N chips.",
    "network": "`network NAME = LEVEL N at BANDWIDTH (...) > ...`: switches between nodes or slices, innermost first.",
    "graph": "`graph NAME of CHIP`: a machine whose links the rest of its file says; `cluster NAME` takes it.",
    "fabric": "`fabric NAME = KIND(NUMBER = N, LINK = NAME)`: a rack, rail, fat_tree, dragonfly or torus of a graph.",
    "points": "`points NAME, NAME as KIND [in NODE]`: chips, switches, cards, hosts and sockets of a graph.",
    "wire": "`wire NAMES to NAMES over LINK [x N] [at SHARE]`: a link from each point to each other.",
    "measured": "`measured OP [over MEMBERS] of NAME [in DTYPE] (SIZE at RATE, ...)`: measured rates by size.",
    "torus": "`torus NAME = CHIP over LINK (wrap = [4, 4, 4])`: chips in a torus; its shape is given by `cluster`.",
}
"""Verbs without their own reader."""


@cache
def manuals() -> dict[str, str]:
    """Return the one-line manual of every verb that has one, by verb."""
    found = dict(OTHERS)
    for verb, (_, read) in readers().items():
        doc = sys.modules[read.__module__].__doc__ or ""
        found.setdefault(verb, " ".join(doc.split("\n\n")[0].split()))
    return found


def manual(verb: str) -> str:
    """Return the one-line manual of `verb`. If planc does not compile such sentences yet, it says so."""
    missing = f"`{verb}`: planc does not compile this sentence yet (E0109)." if verb in VERBS else ""
    read = verb.removesuffix("_from").removesuffix("_no").removesuffix(".core")
    return manuals().get(verb) or manuals().get(read) or missing
