"""The report as text: what a person wants to see first, first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from planc.commands.common import colour, width
from planc.ir.report import Memory, Report, Step, TimedCollective

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GIB = 2.0**30


def print_report(report: Report) -> None:
    """Headline, memory by stage, step by part, axes and collectives."""
    from rich.console import Console

    console = Console(width=max(60, width()), no_color=not colour(), highlight=False, soft_wrap=False)
    assert report.memory and report.step and report.collectives is not None
    _headline(console, report)
    console.print()
    _memory(console, report.memory)
    console.print()
    _step(console, report)
    console.print()
    _collectives(console, report)


def brief_line(report: Report) -> str:
    """One line: does it fit, how fast."""
    assert report.memory and report.step
    used = report.memory.per_device_gib.total
    return (
        f"{report.plan}: {used:.1f} of {report.memory.capacity_gib:.0f} GiB, step {seconds(report.step.time_s)},"
        f" MFU {report.step.mfu:.1%}"
    )


def seconds(value: float) -> str:
    """Seconds in a unit that fits."""
    if value >= 1 or value == 0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


def count(value: float) -> str:
    """A number of things with a unit that fits."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in a decimal unit that fits."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"


def _headline(console: Console, report: Report) -> None:
    assert report.model and report.cluster and report.mesh and report.tokens_per_step
    mesh = " > ".join(f"{name} {n}" for name, n in report.mesh.items())
    devices = f"{report.devices} devices ({report.cluster.nodes} x {report.cluster.chip})"
    console.print(f"[bold]{report.plan}[/bold]: {report.model.name} on {devices}, mesh {mesh}")
    console.print(
        f"{count(report.model.params)} parameters, {count(report.tokens_per_step)} tokens a step"
        f" ({report.global_batch} sequences, {report.microbatches} microbatches a rank)"
        + (f", collectives as {report.target} issues them" if report.target else "")
    )


def _table(*columns: str, left: Iterable[int] = (0,)) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index in left else "right", no_wrap=index not in left)
    return table


def _memory(console: Console, memory: Memory) -> None:
    parts = ("total", "params", "grads", "optimizer", "activations", "buffers", "comm_buffers", "reserve")
    heads = ("total", "params", "grads", "optim", "activ", "buffers", "comm", "reserve")
    table = _table("stage", "layers", *heads)
    for s in memory.stages:
        used = s.per_device_gib
        cells = [gib(getattr(used, part)) for part in parts]
        table.add_row(str(s.stage), str(s.layers), *cells)
    console.print(f"[bold]memory[/bold] GiB on each device, of {memory.capacity_gib:.1f}")
    console.print(table)
    console.print(f"fullest at the {memory.worst.peak_at}")


def gib(value: float) -> str:
    """GiB with as many digits as matter."""
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.3f}" if value < 0.05 else f"{value:.2f}"


def _step(console: Console, report: Report) -> None:
    step, limits = report.step, report.limits
    assert step and limits
    console.print(
        f"[bold]step[/bold] {seconds(step.time_s)}   MFU {step.mfu:.1%}   {step.tflops_per_device:.0f} TFLOP/s"
        f" and {step.tokens_per_s_per_device:,.0f} tokens/s on each device"
    )
    table = _table("", "time", "share", "", left=(0, 3))
    for name, value in parts_of(step):
        if value > 0:
            share = value / step.time_s
            table.add_row(name, seconds(value), f"{share:.1%}", "#" * round(share * 40))
    console.print(table)
    console.print(f"bound by {limits.bound_by}: {limits.what}")


def parts_of(step: Step) -> list[tuple[str, float]]:
    """The named parts of the step, in seconds."""
    return [
        ("compute", step.compute_s),
        ("recompute", step.recompute_s),
        ("exposed communication", step.exposed_comm_s),
        ("bubble", step.bubble_s),
        ("optimizer", step.optimizer_s),
        ("offload", step.offload_s),
        ("overhead", step.overhead_s),
    ]


def _collectives(console: Console, report: Report) -> None:
    rows = report.collectives or ()
    stage = next((r.row.stage for r in rows if r.exposed_s > 0), 0)
    shown = [r for r in rows if r.row.stage == stage]
    where = f" of stage {stage}, the slowest" if report.memory and len(report.memory.stages) > 1 else ""
    console.print(f"[bold]collectives[/bold]{where}, each device and step")
    table = _table("axis", "crosses", "op", "of", "phase", "calls", "payload", "time", "exposed", left=range(5))
    for key, group in grouped(shown).items():
        axis, level, op, carries, phase = key
        table.add_row(
            f"{axis} {group[0].row.group_size}",
            level,
            op,
            carries,
            phase,
            f"{sum(r.row.count for r in group):,}",
            size(sum(r.row.payload_bytes for r in group)),
            seconds(sum(r.time_s for r in group)),
            seconds(sum(r.exposed_s for r in group)),
        )
    console.print(table)


Key = tuple[str, str, str, str, str]


def grouped(rows: Iterable[TimedCollective]) -> dict[Key, list[TimedCollective]]:
    """Rows that differ only in their tensor, together."""
    groups: dict[Key, list[TimedCollective]] = {}
    for r in rows:
        key = (r.row.axis, r.level, r.row.op, r.row.carries, r.row.phase)
        groups.setdefault(key, []).append(r)
    return groups
