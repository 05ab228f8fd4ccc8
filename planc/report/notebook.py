"""Displays reports, programs, differences and search results in notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planc.compare.diff import Diff, PlanChange
from planc.ir.program_text import ProgramText
from planc.ir.report import Report
from planc.ir.target import named
from planc.picture.charts import Bar, Limit, stacked_bars
from planc.picture.marks import WIDE, Picture
from planc.picture.notebook import Shown
from planc.picture.units import count, gib, percent, seconds, size
from planc.report.parts import MEMORY_PARTS, STEP_PARTS
from planc.searching.result import Found

DIFF_PARTS = ("plan", "step", "run", "memory", "collectives", "shards")
MOST_CHANGES = 60
MOST_FINDINGS = 20
"""Number of findings that a table lists."""


def report_shown(report: Report) -> Shown:
    """Return what a notebook displays for `report`: its numbers, memory by stage, step and diagnostics."""
    rows = tuple((d.code, f"line {d.span.line}", d.message) for d in report.diagnostics[:MOST_FINDINGS])
    heads = ("code", "line", "finding")
    title = report.plan or "plan"
    if report.step is None or report.memory is None:
        errors = sum(d.severity == "error" for d in report.diagnostics)
        summary = f"is not costed: {errors} error{'s' if errors != 1 else ''}"
        return Shown(title=title, summary=summary, heads=heads, rows=rows)
    worst, step = report.memory.worst, report.step
    fits = "fits" if worst.per_device_gib.total <= report.memory.capacity_gib else "does not fit"
    summary = (
        f"{fits}: {gib(worst.per_device_gib.total)} of {gib(report.memory.capacity_gib)} GiB, {seconds(step.time_s)} a"
        f" step, MFU {percent(step.mfu)} of {step.peak},"
        f" {count(step.tokens_per_s_per_device * (report.devices or 1))} tokens/s on {report.devices:,} devices,"
        f" {named(report.target)}"
    )
    pictures = (("memory of a device", _memory(report)), ("a step, on the slowest rank", _step(report)))
    return Shown(title=title, summary=summary, pictures=pictures, heads=heads, rows=rows)


def _memory(report: Report) -> Picture:
    memory = report.memory
    assert memory is not None
    rows = [
        Bar(
            f"stage {s.stage}" if len(memory.stages) > 1 else "each device",
            [getattr(s.per_device_gib, part.css) for part in MEMORY_PARTS],
            f"{gib(s.per_device_gib.total)} GiB",
        )
        for s in memory.stages
    ]
    limit = Limit(memory.capacity_gib, f"{gib(memory.capacity_gib)} GiB of a device")
    summary = f"Fullest: stage {memory.worst.stage}, at the {memory.worst.peak_at}."
    title = "Memory of a device by pipeline stage"
    return stacked_bars(rows, MEMORY_PARTS, title=title, summary=summary, unit="GiB", width=WIDE, limit=limit)


def _step(report: Report) -> Picture:
    step = report.step
    assert step is not None
    values = [getattr(step, f"{part.css}_s") for part in STEP_PARTS]
    rows = [Bar("step", values, seconds(step.time_s))]
    named = ", ".join(f"{p.name} {seconds(v)}" for p, v in zip(STEP_PARTS, values, strict=True) if v > 0)
    summary = f"Of {seconds(step.time_s)}: {named}."
    return stacked_bars(rows, STEP_PARTS, title="Time of a step", summary=summary, unit="seconds", width=WIDE)


def program_shown(program: ProgramText) -> Shown:
    """Return what a notebook displays for `program`: its target and its text."""
    summary = f"for {program.target}: a Python file of {program.text.count(chr(10)):,} lines that imports no planc"
    return Shown(title=program.plan.name, summary=summary, code=program.text)


def diff_shown(found: Diff) -> Shown:
    """Return what a notebook displays for `found`, the differences of two plans: a table with one row per change."""
    losses = "comparable" if found.comparable else "not comparable"
    ordered = sorted(found.changes, key=lambda c: DIFF_PARTS.index(c.part))
    rows = tuple((c.part, c.name, _value(c, c.a), _value(c, c.b)) for c in ordered[:MOST_CHANGES])
    more = len(ordered) - len(rows)
    summary = f"{len(ordered):,} changes, losses {losses}{f'; {more:,} changes are not listed' if more else ''}"
    title = " to ".join(
        f"{file} ({named(target)})" for file, target in zip((found.a, found.b), found.targets, strict=True)
    )
    return Shown(title=title, summary=summary, heads=("of", "what", "A", "B"), rows=rows)


def _value(change: PlanChange, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    units = {"s": seconds, "GiB": gib, "bytes": size, "share": percent}
    return units[change.unit](value) if change.unit in units else f"{value:,.0f}"


def found_shown(found: Found) -> Shown:
    """Return what a notebook displays for the search result `found`: a table of layouts, and the parts of their
    steps."""
    layouts = f"{len(found)} layout{'s' if len(found) != 1 else ''}, the fastest first"
    costed = f"{found.fully_costed:,} costed in {seconds(found.seconds)}"
    summary = f"{layouts}, {named(found.target)}; {found.decided:,} decided, {costed}"
    rows = tuple(
        (str(i), c.row or "the plan itself", seconds(c.time_s), percent(c.step.mfu), gib(c.memory_gib), c.why)
        for i, c in enumerate(found, 1)
    )
    heads = ("", "layout", "step", "MFU", "GiB", "than the next")
    if not rows:
        return Shown(title="search", summary=f"{found.none_fits} {gib(found.room_gib)} GiB")
    bars = [
        Bar(str(i), [getattr(c.step, f"{p.css}_s") for p in STEP_PARTS], seconds(c.time_s))
        for i, c in enumerate(found, 1)
    ]
    summary += f"; MFU is of {found.best[0].step.peak}"
    title = "Steps of the best layouts"
    picture = stacked_bars(bars, STEP_PARTS, title=title, summary=summary, unit="seconds", width=WIDE)
    return Shown(title="search", summary=summary, pictures=((title, picture),), heads=heads, rows=rows)


SHOWN: dict[str, Callable[[Any], Shown]] = {
    "Report": report_shown,
    "Program": program_shown,
    "Diff": diff_shown,
    "Found": found_shown,
}
"""The display function of each type, by its name."""
