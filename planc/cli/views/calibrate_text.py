"""The result of `planc calibrate` as text: fitted and measured values, and curves of collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import log10
from statistics import median
from typing import Any

from planc.calibration.fit import rounded, shown
from planc.calibration.fit_machine import FAR, Calibrated
from planc.calibration.fit_steps import FromSteps
from planc.calibration.probes import MeasuredProbe, predicted_seconds
from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.picture.units import seconds, size
from planc.trainer.telemetry.chart import Across, Series, plot


def facts(found: Calibrated, before_s: Sequence[float] = ()) -> dict[str, Any]:
    """Return the calibration `found` as an object of the format `planc.calibration/1`. `before_s` are the predicted
    seconds of each step before the fit, if known."""
    before = before_s or (None,) * len(found.steps)
    return {
        "format": "planc.calibration/1",
        "parameters": [
            {"name": p.name, "field": p.field, "place": p.place, "unit": p.unit, "value": value, "prior": p.prior}
            for p, value in zip(found.parameters, found.values, strict=True)
        ],
        "chip": asdict(found.cluster.chip),
        "probes": [{**m.probe.to_json(), "measured_s": m.seconds, "fitted_s": found.fitted_s(m)} for m in found.probes],
        "steps": [
            {
                "name": s.name,
                "target": s.target,
                "measured_s": s.seconds,
                "before_s": b,
                "fitted_s": fitted_s,
            }
            for s, b, fitted_s in zip(found.steps, before, predicted_seconds(found.steps, found.cluster), strict=True)
        ],
        "far": [*found.far],
    }


def lines(found: Calibrated, width: int) -> Iterator[str]:
    """Yield the calibration `found` as text: parameters, errors by kind of microbenchmark, training steps, and plots of
    collectives, at most `width` columns wide."""
    chip = found.cluster.chip
    rates = ", ".join(f"{dtype} {rate / 1e9:.3g} GFLOP/s" for dtype, rate in chip.flops_per_s.items())
    yield f"{strong(chip.name)}: {rates}, memory {chip.memory_bandwidth_bytes_per_s / 1e9:.3g} GB/s"
    numbers = [
        [p.name, shown(p, rounded(value)), shown(p, p.prior)]
        for p, value in zip(found.parameters, found.values, strict=True)
    ]
    yield from table(("", "fitted", "before"), numbers, left=1)
    yield ""
    yield strong("fitted beside measured")
    yield from table(("probe", "of", "median error", "largest", "measured from", "to"), _rows(found), left=1)
    if found.steps:
        yield ""
        yield strong("whole steps")
        steps = [
            [s.name, seconds(s.seconds), seconds(p), f"{p / s.seconds - 1:+.1%}"]
            for s, p in zip(found.steps, predicted_seconds(found.steps, found.cluster), strict=True)
        ]
        yield from table(("", "measured", "fitted", "error"), steps, left=1)
        yield from _far(found)
    for name, group in _groups(found).items():
        if group[0].probe.kind == "collective" and group[0].probe.op in ("all_gather", "all_reduce"):
            yield ""
            yield f"{strong(name)}, seconds by bytes"
            yield curve(found, group, min(width, 80))


def lines_of_steps(found: FromSteps, peaks: Sequence[tuple[float, float] | None]) -> Iterator[str]:
    """Yield the parameters that a fit to training steps changed, and the errors of each step before and after it.
    `peaks` has the (measured, predicted) peak memory of each step in bytes, None if not measured."""
    machine = found.found
    changed = found.changed()
    moved = [
        [p.name, shown(p, rounded(value)), shown(p, p.prior)]
        for p, value in zip(changed.parameters, changed.values, strict=True)
    ]
    kept = len(machine.parameters) - len(moved)
    yield strong(machine.cluster.chip.name)
    yield from table(("", "fitted", "before"), moved, left=1) if moved else ()
    yield f"{kept} of {len(machine.parameters)} numbers stay as they are written" if kept else "every number moved"
    yield ""
    yield strong("whole steps")
    errors = found.errors()
    rows = [
        [s.name, s.target or "none", seconds(s.seconds), f"{before:+.1%}", f"{after:+.1%}", *_peak_cells(peak)]
        for s, (before, after), peak in zip(machine.steps, errors, peaks, strict=True)
    ]
    yield from table(("plan", "target", "measured", "before", "after", "peak", "predicted"), rows, left=2)
    middle = [median(abs(pair[i]) for pair in errors) for i in (0, 1)]
    yield ""
    yield f"median error {middle[0]:.1%} before, {middle[1]:.1%} after, on the same {len(rows)} runs"
    yield from _far(machine)


def _far(found: Calibrated) -> Iterator[str]:
    if far := found.far:
        yield f"{len(far)} of {len(found.steps)} stay off by more than {FAR:.0%}: {', '.join(far)}"


def _peak_cells(peak: tuple[float, float] | None) -> list[str]:
    return [size(peak[0]), f"{peak[1] / peak[0] - 1:+.1%}"] if peak else ["", ""]


def _groups(found: Calibrated) -> dict[str, list[MeasuredProbe]]:
    groups: dict[str, list[MeasuredProbe]] = {}
    for m in found.probes:
        groups.setdefault(m.probe.name, []).append(m)
    return groups


def _rows(found: Calibrated) -> list[list[str]]:
    rows = []
    for name, group in _groups(found).items():
        errors = [found.error(m) for m in group]
        worst = max(errors, key=abs)
        ends = (min(m.seconds for m in group), max(m.seconds for m in group))
        middle = median(abs(e) for e in errors)
        rows.append([name, str(len(group)), f"{middle:.1%}", f"{worst:+.1%}", *map(seconds, ends)])
    return rows


def curve(found: Calibrated, group: list[MeasuredProbe], width: int) -> str:
    """Return a log-log plot, `width` columns wide, of measured and fitted seconds of the microbenchmarks `group`."""
    ordered = sorted(group, key=lambda m: m.probe.scale)
    drawn = [
        Series("measured", tuple(log10(m.seconds) for m in ordered)),
        Series("fitted", tuple(log10(found.fitted_s(m)) for m in ordered)),
    ]
    across = Across(tuple(size(m.probe.scale) for m in ordered), "")
    return plot(drawn, width, 8, across=across, say=lambda value: seconds(10**value).replace(" ", ""))
