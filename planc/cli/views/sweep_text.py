"""The result of `planc sweep` as text: a table, a plot for the terminal, SVG or CSV."""

from __future__ import annotations

import csv as comma
from collections.abc import Callable, Iterator
from io import StringIO
from math import nan
from textwrap import shorten

from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.compare.sweep import NAMES, Costs, Sweep, SweepRow
from planc.ir.report import peak_text
from planc.ir.target import NO_TARGET, named
from planc.picture.units import seconds
from planc.trainer.telemetry.chart import Across, Series, plot, svg

SHARES: dict[str, Callable[[Costs], float]] = {
    "MFU": lambda c: c.mfu,
    "exposed / step": lambda c: c.exposed_comm_s / c.time_s,
    "bubble / step": lambda c: c.bubble_s / c.time_s,
    "memory / device": lambda c: c.memory_gib / c.capacity_gib,
}
"""Plotted figures: shares, so that all fit on one scale."""


def lines(found: Sweep, width: int) -> Iterator[str]:
    """Yield a table of `found`, at most `width` columns wide, and a plot if at least two values could be costed."""
    peaks = dict.fromkeys(peak_text(r.costs.peak_tflops, r.costs.peak_dtype) for r in found.rows if r.costs)
    of = "".join(f"; MFU is of {peak}" for peak in peaks)
    yield f"{strong(found.file)} over {found.over.name}{_one_target(found)}{of}"
    first = f"{found.over.name} %" if "." in found.over.name else found.over.name
    heads = (first, "devices", "target", "step", "MFU", "GiB", "tokens/s/device", "exposed", "bubble", "")
    rows = [_cells(row, width) for row in found.rows]
    kept = [i for i, head in enumerate(heads) if i == 0 or head not in _idle(found)]
    yield from table([heads[i] for i in kept], [[row[i] for i in kept] for row in rows], left=0, left_last=True)
    if sum(row.costs is not None for row in found.rows) > 1:
        yield ""
        yield plot(curves(found), min(width, 100), across=_x_axis(found), say=_percent)


def _idle(found: Sweep) -> set[str]:
    """Return the names of columns that are left out: they repeat another column or are the same in all rows."""
    idle = {"devices"} if found.over.name == "devices" else set()
    idle |= {"target"} if _one_target(found) else set()
    return idle | (set() if any(r.costs and r.costs.bubble_s for r in found.rows) else {"bubble"})


def _one_target(found: Sweep) -> str:
    """Return a clause that names the target of all rows; "" if they have different ones."""
    targets = {row.target for row in found.rows if row.costs is not None}
    return f", {named(*targets)}" if len(targets) == 1 else ""


def _cells(row: SweepRow, width: int) -> list[str]:
    costs = row.costs
    numbers = [""] * 7
    if costs is not None:
        numbers = [
            row.target or NO_TARGET,
            seconds(costs.time_s),
            _percent(costs.mfu),
            f"{costs.memory_gib:.1f}",
            f"{costs.tokens_per_s_per_device:,.0f}",
            _percent(costs.exposed_comm_s / costs.time_s),
            _percent(costs.bubble_s / costs.time_s),
        ]
    devices = "" if row.devices is None else f"{row.devices:,}"
    return [f"{row.value:,}", devices, *numbers, shorten(error_summary(row), max(20, width - 30), placeholder=" ...")]


def error_summary(row: SweepRow) -> str:
    """Return why the plan of `row` cannot be costed: the first error's code and message; "" if it can."""
    if row.why:
        return row.why
    first = next(iter(row.errors), None)
    more = f" and {len(row.errors) - 1} more" if len(row.errors) > 1 else ""
    return "" if first is None else f"{first.code} {first.message}{more}"


def curves(found: Sweep) -> list[Series]:
    """Return a curve over the values of `found` for MFU, exposed communication, bubble and memory, each as a fraction;
    NaN where the plan has errors. A curve that is 0 everywhere is left out."""
    drawn = [
        Series(name, tuple(nan if row.costs is None else share(row.costs) for row in found.rows))
        for name, share in SHARES.items()
    ]
    return [c for c in drawn if any(v > 0 for v in c.values)]


def picture(found: Sweep) -> str:
    """Return the curves of `found` as SVG text."""
    return svg(curves(found), f"{found.file} over {found.over.name}", across=_x_axis(found), say=_percent)


def csv(found: Sweep) -> str:
    """Return `found` as CSV, one line per value. The last column says why figures are missing."""
    text = StringIO()
    writer = comma.writer(text, lineterminator="\n")
    writer.writerow(["value", "devices", *NAMES, "target", "errors"])
    for row in found.rows:
        numbers = [""] * len(NAMES) if row.costs is None else [str(getattr(row.costs, n)) for n in NAMES]
        codes = row.why or " ".join(d.code for d in row.errors)
        of = "" if row.costs is None else row.target or NO_TARGET
        writer.writerow([row.value, "" if row.devices is None else row.devices, *numbers, of, codes])
    return text.getvalue()


def _x_axis(found: Sweep) -> Across:
    return Across(tuple(f"{row.value:,}" for row in found.rows), found.over.name)


def _percent(value: float) -> str:
    return f"{value:.1%}"
