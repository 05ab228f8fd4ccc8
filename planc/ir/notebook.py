"""Reports and programs as notebooks show them, and the parts of memory and of a step with their colours."""

from __future__ import annotations

from planc.ir.program import Program
from planc.ir.report import Report
from planc.ir.target import named
from planc.picture.charts import Bar, Limit, Part, stacked_bars
from planc.picture.marks import WIDE, Picture
from planc.picture.notebook import Shown
from planc.picture.units import count, gib, percent, seconds

MEMORY_PARTS = (
    Part("params", "parameters"),
    Part("grads", "gradients"),
    Part("optimizer", "optimizer"),
    Part("activations", "activations"),
    Part("buffers", "buffers"),
    Part("comm_buffers", "communicators"),
    Part("reserve", "reserve"),
)
"""Parts of a device's memory in the order in which they are stacked."""
STEP_PARTS = (
    Part("compute", "compute"),
    Part("recompute", "recompute"),
    Part("exposed_comm", "exposed communication"),
    Part("bubble", "bubble"),
    Part("optimizer", "optimizer"),
    Part("offload", "offload"),
    Part("overhead", "overhead"),
)
"""Parts of a step in the order in which they are stacked."""
MOST_FINDINGS = 20
"""Findings that a table lists."""


def report_shown(report: Report) -> Shown:
    """A `report`: its numbers, its memory by stage and its step, and its findings."""
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


def program_shown(program: Program) -> Shown:
    """A `program`: its target and its text."""
    summary = f"for {program.target}: a Python file of {program.text.count(chr(10)):,} lines that imports no planc"
    return Shown(title=program.plan.name, summary=summary, code=program.text)
