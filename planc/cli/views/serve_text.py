"""The report of a serve plan as text: what fits beside the weights, both peaks, and what a sync moves."""

from __future__ import annotations

from collections.abc import Iterator

from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.ir.serve_report import ClassBytes, ServeReport, SyncFacts
from planc.ir.served import ServedMemory, SharedPeaks
from planc.picture.units import gib, seconds, size

GIB = 2.0**30
MOST_CLASSES = 6
"""Parameters that the text lists, those that move most first."""


def serve_lines(report: ServeReport) -> Iterator[str]:
    """Yield the lines of the report of a serve plan without errors of its layout; nothing for another."""
    if report.memory is None or report.sync is None:
        return
    where = "on the trainer's devices" if report.colocated else "on devices of its own"
    yield f"{strong(report.plan or '')}: serves {report.trainer} {where}"
    held = f"weights as {report.weights}, cache as {report.cache_dtype}"
    yield f"{report.devices} devices, {report.replicas} replicas; {held}"
    yield ""
    yield from _memory(report.memory)
    if report.peaks is not None:
        yield from _peaks(report.peaks)
    if report.prefill_s is not None and report.decode_s is not None:
        yield ""
        yield (
            f"{strong('rooflines')} prefill of all prompts {seconds(report.prefill_s)}, a token of every request"
            f" {seconds(report.decode_s)}"
        )
        yield "  at best: no scheduler, launches or collectives; AIConfigurator simulates serving"
    yield ""
    yield from sync_lines(report.sync, brief=True)


def _memory(memory: ServedMemory) -> Iterator[str]:
    each = (
        ("weights", memory.weights.total),
        ("activations", memory.activations),
        ("other", memory.other),
        ("cache", memory.cache),
    )
    parts = ", ".join(f"{name} {gib(held / GIB)}" for name, held in each)
    yield f"{strong('memory')} {gib(memory.usable / GIB)} of {memory.capacity / GIB:.0f} GiB a device: {parts} GiB"
    kept = memory.size.every_token_bytes / 1000
    fit = f"{memory.tokens:,} tokens a replica, {kept:.1f} kB each a device"
    requests = "" if memory.requests is None else f"; {memory.requests:,} requests at once"
    yield f"{strong('cache')} {fit}{requests}"


def _peaks(peaks: SharedPeaks) -> Iterator[str]:
    for phase, (trainer, generator) in (("training", peaks.training), ("serving", peaks.serving)):
        total = (trainer + generator) / GIB
        sides = f"trainer {gib(trainer / GIB)} + generator {gib(generator / GIB)}"
        yield f"{strong(f'while {phase}')} {gib(total)} of {peaks.capacity / GIB:.0f} GiB: {sides}"
    if peaks.host:
        yield f"  {gib(peaks.host / GIB)} GiB a device of the trainer are on the host while serving"


def sync_lines(sync: SyncFacts, *, brief: bool = False) -> Iterator[str]:
    """Yield the lines about one sync; `brief` leaves the table of parameters out."""
    factor = f" ({sync.seconds / sync.bound_s:.2f}x of the bound)" if sync.bound_s else ""
    yield f"{strong('sync')} {seconds(sync.seconds)}{factor}, {size(sync.near_bytes + sync.far_bytes)} as {sync.dtype}"
    if sync.seconds:
        link = f"busiest: {sync.busiest}, {size(sync.busiest_bytes)}"
        yield f"  {size(sync.far_bytes)} between nodes, {size(sync.near_bytes)} inside; {link}"
        slower = f"{sync.gathered_s / sync.seconds:.1f}x"
        yield f"  gathering everything, then sending it from one rank: {seconds(sync.gathered_s)} ({slower})"
        if sync.program_s is not None:
            fast, usual, slow = map(seconds, sync.program_s)
            yield f"  of links alone; published programs, which pack and load tensors: about {usual}, {fast} to {slow}"
    yield (
        f"  {size(sync.local_bytes)} stay where they are; a rank holds up to {size(sync.staging_bytes)} twice meanwhile"
    )
    yield f"  loading a checkpoint of the trainer instead: all ranks together read {size(sync.load_bytes)} of fp32"
    if sync.changed_s is not None:
        delta = f"the changed elements alone, each with its index, would take {seconds(sync.changed_s)}"
        yield f"  {delta}; the program of `planc lower` sends all"
    if brief:
        return
    yield ""
    most = sorted(sync.classes, key=lambda c: -(c.near_bytes + c.far_bytes))
    rows = [_row(c) for c in most[:MOST_CLASSES]]
    if len(most) > MOST_CLASSES:
        rest = most[MOST_CLASSES:]
        rows.append((f"{len(rest)} others", *(_sums(rest))))
    yield from table(("parameter", "tensors", "messages", "between nodes", "inside", "stay"), rows, left=1)


def _row(one: ClassBytes) -> tuple[str, ...]:
    return (one.name, *_sums([one]))


def _sums(found: list[ClassBytes]) -> tuple[str, ...]:
    return (
        f"{sum(c.tensors for c in found):,}",
        f"{sum(c.pieces for c in found):,}",
        size(sum(c.far_bytes for c in found)),
        size(sum(c.near_bytes for c in found)),
        size(sum(c.local_bytes for c in found)),
    )
