"""Differences of two plans as text: only what changes, the largest change first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.compare.diff import Diff, Part, PlanChange
from planc.compare.same_training import Apart
from planc.ir.target import named
from planc.language.units import CURRENCIES
from planc.picture.units import days, gib, money, seconds, size

TITLES: dict[Part, str] = {
    "plan": "plan",
    "step": "step",
    "run": "the whole run, its goodput in it",
    "memory": "memory, GiB on the fullest device",
    "collectives": "collectives of the slowest stage, each device and step",
    "generator": "generator",
    "serving": "what a device of the generator holds, and rooflines of serving",
    "sync": "a sync of weights",
}
LABELS = {
    "time_s": "step",
    "tokens_per_s_per_device": "tokens/s on a device",
    "exposed_comm_s": "exposed communication",
    "comm_buffers": "comm buffers",
    "device_hours": "device hours",
}


Bold = Callable[[str], str]


def lines(found: Diff, bold: Bold = strong) -> Iterator[str]:
    """Yield the differences `found` as text. `bold` formats titles."""
    for letter, file, target in zip("AB", (found.a, found.b), found.targets, strict=True):
        yield f"{bold(letter)} {file}, {named(target)}"
    if not found.changes and not found.apart:
        yield "the same shards, collectives, memory and time"
        return
    parts: tuple[Part, ...] = ("generator", "serving", "sync", "plan", "step", "run", "memory")
    for part in parts:
        yield from _numbers(part, bold, [c for c in found.changes if c.part == part])
    yield from _collectives(bold, [c for c in found.changes if c.part == "collectives"])
    yield from _shards(bold, [c for c in found.changes if c.part == "shards"])
    yield from _losses(bold, found.apart)
    yield from _checkpoint(bold, found)


def _numbers(part: Part, bold: Bold, changes: Sequence[PlanChange]) -> Iterator[str]:
    if not changes:
        return
    rows = [(label(c), formatted(c.a, c.unit), formatted(c.b, c.unit), ratio(c.a, c.b)) for c in changes]
    yield ""
    said = part in ("plan", "generator")
    heads = ("", "A", "B", "") if said else ("", "A", "B", "change")
    yield bold(TITLES[part])
    yield from table(heads, rows, left=3 if said else 1, columns=None if bold is strong else 0)


def _collectives(bold: Bold, changes: Sequence[PlanChange]) -> Iterator[str]:
    if not changes:
        return
    kinds: dict[str, dict[str, PlanChange]] = {}
    for change in changes:
        kinds.setdefault(change.name, {})[change.unit] = change
    rows = [[*_kind(name), *_counts(by.get("calls"), ""), *_counts(by.get("bytes"), "B")] for name, by in kinds.items()]
    yield ""
    yield bold(TITLES["collectives"])
    heads = ("op", "axis", "dtype", "calls A", "calls B", "bytes A", "bytes B", "change")
    yield from table(heads, rows, left=3, columns=None if bold is strong else 0)


def _kind(name: str) -> list[str]:
    op, axis, dtype = name.split(" ")
    return [op, axis, dtype]


def _counts(change: PlanChange | None, unit: str) -> list[str]:
    if change is None:
        return ["=", "=", *([""] if unit else [])]  # as many in both
    pair = [formatted(change.a, unit), formatted(change.b, unit)]
    return [*pair, ratio(change.a, change.b)] if unit else pair


def _shards(bold: Bold, changes: Sequence[PlanChange]) -> Iterator[str]:
    if not changes:
        return
    yield ""
    yield bold("shards")
    sized = [c for c in changes if _axes(c.a) == _axes(c.b)]
    for change in (c for c in changes if c not in sized):
        yield change.name
        yield f"  A {change.a}"
        yield f"  B {change.b}"
    if sized:
        yield f"{sum(len(c.names) for c in sized)} tensors keep their axes, with other sizes (see mesh)"


def _axes(layout: float | str | None) -> str:
    """Return the text `layout` without the sizes of axes."""
    return re.sub(r" \d+\b", "", str(layout))


def _losses(bold: Bold, reasons: Sequence[Apart]) -> Iterator[str]:
    yield ""
    if not reasons:
        yield f"{bold('losses')} stay comparable: same model, tokens of a step, precision and tokens kept"
        return
    yield f"{bold('losses')} are not comparable"
    for reason in reasons:
        yield f"  {reason.what}: {reason.a} in A, {reason.b} in B"
        for name, sentence in (("A", reason.sentence_a), ("B", reason.sentence_b)):
            if sentence:
                yield f"    {name}: {sentence}"


def _checkpoint(bold: Bold, found: Diff) -> Iterator[str]:
    move = found.checkpoint
    yield ""
    if move is None:
        yield f"{bold('checkpoint')} no tensor of one model's is the other's"
    elif not move.same_machine:
        yield (
            f"{bold('checkpoint')} of {size(move.checkpoint_bytes)}: other machines, so that all"
            f" {size(move.needed_bytes)} come from elsewhere, {size(move.worst_device_bytes)} at most to one device"
        )
    elif not move.moved_bytes:
        yield f"{bold('checkpoint')} of {size(move.checkpoint_bytes)}: every device has what it needs"
    else:
        yield (
            f"{bold('checkpoint')} of {size(move.checkpoint_bytes)}: {size(move.moved_bytes)} of the"
            f" {size(move.needed_bytes)} that B's devices hold come from elsewhere,"
            f" {size(move.worst_device_bytes)} at most to one device ({move.worst_device})"
        )


def label(change: PlanChange) -> str:
    """Return the name of the changed item `change`; for MFU with the peak that it refers to, or both plans' peaks."""
    if change.name == "mfu":
        a, b = change.names
        return f"MFU of {a}" if a == b else f"MFU of {a}, in B of {b}"
    return LABELS.get(change.name, change.name.removesuffix("_s"))


def formatted(value: float | str | None, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    units = {"s": seconds, "GiB": gib, "B": size, "bytes": size}
    if unit == "days":
        return days(value)
    if unit in CURRENCIES:
        return money(value, unit)
    if unit in units:
        return units[unit](value)
    return f"{value:.1%}" if unit == "share" else f"{value:,.0f}"


def ratio(a: float | str | None, b: float | str | None) -> str:
    """Return the relative change from `a` to `b` as text; "" if one is no number or 0."""
    if a is None or b is None or isinstance(a, str) or isinstance(b, str) or not a or not b:
        return ""
    return f"{b / a - 1:+.1%}" if b < 10 * a else f"{b / a:,.0f} x"
