"""The report of a plan as text, the most important parts first."""

from __future__ import annotations

from collections.abc import Iterable

from planc.cli.common import colour
from planc.cli.views.table import fitted, table
from planc.driver.reporting import grouped, run_lines
from planc.frameworks import policy_of
from planc.ir.report import Interval, Report, Step, TargetAnswer
from planc.ir.target import named
from planc.picture.units import approximate, count, gib, seconds, size

MOST_LINES = 10
"""Number of lines that a target's answer lists for each code."""


def strong(text: str) -> str:
    """Return `text` in bold if standard output supports it."""
    return f"\033[1m{text}\033[0m" if colour() else text


def print_report(report: Report) -> None:
    """Print `report`: headline, memory by pipeline stage, step time by part, and collectives by axis."""
    step = [*_step(report), *_goodput(report), *run_lines(report.run)]
    sections = (_headline(report), _memory(report), step, _collectives(report))
    print("\n\n".join("\n".join(fitted(lines)) for lines in sections))


def brief_line(report: Report) -> str:
    """Return one line about `report`: memory, step time and MFU."""
    assert report.memory and report.step
    used = report.memory.per_device_gib.total
    return (
        f"{report.plan}: {used:.1f} of {report.memory.capacity_gib:.0f} GiB, step {seconds(report.step.time_s)},"
        f" MFU {report.step.mfu:.1%} of {report.step.peak}, {named(report.target)}{_defaults(report)}"
    )


def _defaults(report: Report) -> str:
    """Return clauses with the defaults in effect for sentences that the plan does not have, and with the number of
    fields of another system's file that it says only nearly."""
    near = f"; {approximate(report.inexact)}" if report.inexact else ""
    return (f"; by default {', '.join(report.defaults)}" if report.defaults else "") + near


def _trained(report: Report) -> str:
    """Return a clause with the number of trained parameters, if some parameters are frozen."""
    assert report.model
    model = report.model
    return f" ({count(model.trained_params)} trained)" if model.trained_params < model.params else ""


def _headline(report: Report) -> list[str]:
    assert report.model and report.cluster and report.mesh and report.tokens_per_step
    mesh = " > ".join(f"{name} {n}" for name, n in report.mesh.items())
    devices = f"{report.devices} devices ({report.cluster.nodes} x {report.cluster.chip})"
    title = strong(report.plan or "")
    return [
        f"{title}: {report.model.name} on {devices}, mesh {mesh}",
        f"{count(report.model.params)} parameters{_trained(report)}, {count(report.tokens_per_step)} tokens a step"
        f" ({report.global_batch} sequences, {report.microbatches} microbatches a rank){_defaults(report)}",
        f"target {report.target}: attention, collectives and memory of its program"
        if report.target
        else f"as {policy_of(report.framework).title} realises it"
        if report.framework
        else "target none: what any correct program keeps and sends",
    ]


def targets_lines(report: Report) -> list[str]:
    """Return which targets accept the plan of `report`, and why the others refuse it: `cuda: lowers; xla: E0901 at line
    12`, then a line for each reason."""
    answers = "; ".join(f"{t.target}: {'lowers' if t.lowers else _refusals(t)}" for t in report.targets)
    reasons = dict.fromkeys(f"  {r.code}: {r.message}" for t in report.targets for r in t.refusals)
    more = len(reasons) - MOST_LINES
    return [answers, *[*reasons][:MOST_LINES], *([f"  and {more:,} more"] if more > 0 else [])]


def _refusals(answer: TargetAnswer) -> str:
    """Return the error codes of a target that refuses the plan, with lines, as in `E0901 at lines 4, 9`."""
    lines: dict[str, dict[int, None]] = {}
    for refusal in answer.refusals:
        lines.setdefault(refusal.code, {})[refusal.line] = None
    return ", ".join(
        f"{code} at line{'s' if len(found) > 1 else ''} {_numbers(found)}" for code, found in lines.items()
    )


def _numbers(lines: Iterable[int]) -> str:
    first = list(lines)
    more = f" and {len(first) - MOST_LINES:,} more" if len(first) > MOST_LINES else ""
    return ", ".join(map(str, first[:MOST_LINES])) + more


def _memory(report: Report) -> list[str]:
    memory = report.memory
    assert memory
    parts = ("total", "params", "grads", "optimizer", "activations", "buffers", "comm_buffers", "reserve")
    heads = ("total", "params", "grads", "optim", "activ", "buffers", "comm", "reserve")
    found = report.uncertainty
    likely = f" ({gib(found.allocated_gib.low)} to {gib(found.allocated_gib.high)})" if found else ""
    rows = [
        [str(s.stage), str(s.layers), *(gib(getattr(s.per_device_gib, part)) for part in parts)] for s in memory.stages
    ]
    return [
        f"{strong('memory')} GiB on each device, of {memory.capacity_gib:.1f}",
        *table(("stage", "layers", *heads), rows, left=1),
        f"fullest at the {memory.worst.peak_at}",
        f"peak allocated {gib(memory.allocated_gib)} GiB{likely}, reserved {gib(memory.reserved_gib.low)} to"
        f" {gib(memory.reserved_gib.high)} GiB",
        *_shown(report),
        *(
            [f"the peak's interval is from {_runs(found.allocated_gib)}"]
            if found and found.allocated_gib.none_of
            else ()
        ),
    ]


def _shown(report: Report) -> list[str]:
    """Return a sentence on what nvidia-smi shows for the fullest device of GPUs; [] for devices without NCCL."""
    assert report.memory
    parts = report.memory.per_device_gib
    return [
        f"nvidia-smi would show {gib(parts.total)} GiB: tensors, communicators {gib(parts.comm_buffers)}, context and"
        f" idle memory of the allocator {gib(parts.reserve)}"
    ] * (parts.comm_buffers > 0)


def _runs(interval: Interval) -> str:
    """Return a clause about the published runs that `interval` is derived from, and the plan's chip or framework that
    none of them used."""
    unlike = f", none with {' or '.join(interval.none_of)}" if interval.none_of else ""
    return f"{interval.runs} published runs ({interval.of}){unlike}"


def _step(report: Report) -> list[str]:
    step, limits = report.step, report.limits
    assert step and limits
    rows = [
        [name, seconds(value), f"{value / step.time_s:.1%}", "#" * round(value / step.time_s * 40)]
        for name, value in parts_of(step)
        if value > 0
    ]
    return [
        f"{strong('step')} {seconds(step.time_s)}   MFU {step.mfu:.1%} of {step.peak}  "
        f" {step.tflops_per_device:.3g} TFLOP/s and {step.tokens_per_s_per_device:,.0f} tokens/s on each device",
        *table(("", "time", "share", ""), rows, left=1, left_last=True),
        f"bound by {limits.bound_by}: {limits.what}",
        *_interval(report),
    ]


def _interval(report: Report) -> list[str]:
    if report.uncertainty is None:
        return []
    found = report.uncertainty.step_s
    return [
        f"{report.uncertainty.share:.0%} interval {seconds(found.low)} to {seconds(found.high)}, from {_runs(found)}"
    ]


def _goodput(report: Report) -> list[str]:
    good = report.goodput
    assert good
    rates = good.failures_per_day
    parts = f" ({', '.join(f'{name} {rate:.2g}' for name, rate in rates.items())})" if len(rates) > 1 else ""
    return [
        f"goodput {good.runtime:.1%} of the time, {good.productivity:.1%} of the peak:"
        f" {good.interruptions_per_day:.2g} failures a day{parts}, a checkpoint of {seconds(good.checkpoint_s)}"
        f" every {good.checkpoint_interval_s / 60:.0f} min"
    ]


def parts_of(step: Step) -> list[tuple[str, float]]:
    """Return the parts of the step time of `step`, each with its name and seconds."""
    return [
        ("compute", step.compute_s),
        ("recompute", step.recompute_s),
        ("exposed communication", step.exposed_comm_s),
        ("bubble", step.bubble_s),
        ("optimizer", step.optimizer_s),
        ("offload", step.offload_s),
        ("overhead", step.overhead_s),
    ]


def _collectives(report: Report) -> list[str]:
    rows = report.collectives or ()
    stage = next((r.row.stage for r in rows if r.exposed_s > 0), 0)
    where = f" of stage {stage}, the slowest" if report.memory and len(report.memory.stages) > 1 else ""
    heads = ("axis", "crosses", "op", "of", "phase", "calls", "payload", "time", "exposed")
    lines = [
        [
            f"{axis} {group[0].row.group_size}",
            *(level, op, carries, phase),
            f"{sum(r.row.count for r in group):,}",
            size(sum(r.row.payload_bytes for r in group)),
            seconds(sum(r.time_s for r in group)),
            seconds(sum(r.exposed_s for r in group)),
        ]
        for (axis, level, op, carries, phase), group in grouped(r for r in rows if r.row.stage == stage).items()
    ]
    return [f"{strong('collectives')}{where}, each device and step", *table(heads, lines, left=5)]
