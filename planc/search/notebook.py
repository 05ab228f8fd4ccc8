"""Layouts that a search found, as notebooks show them."""

from __future__ import annotations

from planc.ir.target import named
from planc.picture.charts import Bar, Part, stacked_bars
from planc.picture.marks import WIDE
from planc.picture.notebook import Shown
from planc.picture.units import gib, percent, seconds
from planc.search.branch_and_bound import Found
from planc.search.explain import PARTS

STEP_PARTS = tuple(Part(name.removesuffix("_s"), said) for name, said in PARTS.items())


def found_shown(found: Found) -> Shown:
    """The layouts `found`: a table, and the parts of their steps."""
    layouts = f"{len(found)} layout{'s' if len(found) != 1 else ''}, the fastest first"
    costed = f"{found.fully_costed:,} costed in {seconds(found.seconds)}"
    summary = f"{layouts}, {named(found.target)}; {found.decided:,} decided, {costed}"
    rows = tuple(
        (str(i), c.label or "the plan itself", seconds(c.time_s), percent(c.step.mfu), gib(c.memory_gib), c.why)
        for i, c in enumerate(found, 1)
    )
    heads = ("", "layout", "step", "MFU", "GiB", "than the next")
    if not rows:
        return Shown(title="search", summary=f"no layout fits {gib(found.room_gib)} GiB")
    bars = [Bar(str(i), [getattr(c.step, p) for p in PARTS], seconds(c.time_s)) for i, c in enumerate(found, 1)]
    summary += f"; MFU is of {found.best[0].step.peak}"
    title = "Steps of the best layouts"
    picture = stacked_bars(bars, STEP_PARTS, title=title, summary=summary, unit="seconds", width=WIDE)
    return Shown(title="search", summary=summary, pictures=((title, picture),), heads=heads, rows=rows)
