"""Differences of two plans as notebooks show them."""

from __future__ import annotations

from planc.compare.diff import Change, Diff
from planc.ir.target import named
from planc.picture.notebook import Shown
from planc.picture.units import gib, percent, seconds, size

PARTS = ("plan", "step", "run", "memory", "collectives", "shards")
MOST_ROWS = 60


def diff_shown(found: Diff) -> Shown:
    """The differences `found` as a table, a change a row."""
    losses = "comparable" if found.comparable else "not comparable"
    ordered = sorted(found.changes, key=lambda c: PARTS.index(c.part))
    rows = tuple((c.part, c.name, _text(c, c.a), _text(c, c.b)) for c in ordered[:MOST_ROWS])
    more = len(ordered) - len(rows)
    summary = f"{len(ordered):,} changes, losses {losses}{f'; {more:,} changes are not listed' if more else ''}"
    title = " to ".join(
        f"{file} ({named(target)})" for file, target in zip((found.a, found.b), found.targets, strict=True)
    )
    return Shown(title=title, summary=summary, heads=("of", "what", "A", "B"), rows=rows)


def _text(change: Change, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    units = {"s": seconds, "GiB": gib, "bytes": size, "share": percent}
    return units[change.unit](value) if change.unit in units else f"{value:,.0f}"
