"""Reads the changes to a machine that the command line tries, one per `--with`: `--with "link leaf3-spine1 at 50 %"`.

link A-B at SHARE | gone       one link between two points of the machine's graph
links NAME at SHARE | gone     all links of the type NAME
host NAME gone                 a node with its chips; the mesh shrinks by an axis that divides the batch
switch NAME gone               a switch, leaf, spine, nic or chip
rail N gone                    card N of every node, or the switches of this rail
oversubscription x N           links between switches carry 1 / N
nodes dealt over N leaves      neighbours in rank are under different leaves, as with a naive scheduler
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.span import Source, Span
from planc.ir.hardware import Change

FILE = "--with"
NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
LEFT = rf"(?:at (?P<share>{NUMBER}) ?%|(?P<gone>gone|down))"
GONE = r"(?:gone|down)"
FORMS: tuple[tuple[str, str], ...] = (
    ("link", rf"link (?P<one>{NAME}) ?- ?(?P<other>{NAME}) {LEFT}"),
    ("links", rf"links (?P<one>{NAME}) {LEFT}"),
    ("host", rf"(?:host|node) (?P<one>{NAME}) {GONE}"),
    ("rail", rf"rail (?P<number>\d{{1,6}}) {GONE}"),
    ("point", rf"(?:point|switch|leaf|spine|nic|card|chip|gpu) (?P<one>{NAME}) {GONE}"),
    ("oversubscription", rf"oversubscription x ?(?P<number>{NUMBER})"),
    ("dealt", r"nodes dealt over (?P<number>\d{1,6}) leaves"),
)
LEGAL = (
    "link A-B at 50 %", "link A-B gone", "links NAME at 50 %", "host NAME gone", "switch NAME gone", "rail 2 gone",
    "oversubscription x 2", "nodes dealt over 4 leaves",
)  # fmt: skip


def read_what_ifs(texts: Sequence[str]) -> tuple[Change, ...]:
    """Return the changes that `texts` describe. Raises PlanError with a diagnostic for each text that is not a
    change."""
    found: list[Change] = []
    wrong: list[Diagnostic] = []
    for line, text in enumerate(texts, 1):
        change = _change(" ".join(text.split()))
        if isinstance(change, str):
            wrong.append(Diagnostic("E1421", change, span_of(text, line), help=f"legal: {'; '.join(LEGAL)}"))
        else:
            found.append(change)
    if wrong:
        raise PlanError(wrong)
    return tuple(found)


def span_of(text: str, line: int, name: str = "") -> Span:
    """Return the location of `name` in `text`, which is the text of `--with` number `line`. It is the location of the
    whole text if `name` is "" or not found.

    >>> span_of("rail 2 gone", 1, "2").column
    6
    """
    start = max(0, text.find(name)) if name else 0
    return Span(FILE, line, start + 1, line, start + 1 + max(1, len(name or text)))


def source_of(texts: Sequence[str]) -> Source:
    """Return `texts`, one per line, in the form from which diagnostics quote lines."""
    return Source.of(FILE, "\n".join(" ".join(t.splitlines()) for t in texts))


def _change(text: str) -> Change | str:
    for kind, pattern in FORMS:
        if (found := re.fullmatch(pattern, text, re.ASCII)) is None:
            continue
        given = found.groupdict()
        names = tuple(name for key in ("one", "other") if (name := given.get(key)))
        if len(names) == 2 and names[0] == names[1]:
            return f"`{names[0]}` has no link with itself"
        value = float(given.get("number") or 0)
        if given.get("share"):
            value = float(given["share"]) / 100
            if not 1e-6 <= value <= 100:
                return "a link keeps a share above 0 % and at most 10000 %: write `gone` for 0 %"
        if kind == "oversubscription" and not 1e-3 <= value <= 1e3:
            return "the oversubscription is multiplied by 0.001 to 1000"
        return Change(kind=kind, names=names, value=value)  # type: ignore[arg-type]
    return f"`{text[:60]}` is nothing that can be otherwise on a machine"
