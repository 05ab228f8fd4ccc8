"""Result of a calibration for people: parameters fitted beside measured, and curves of the collectives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import log10
from statistics import median
from typing import Any

from planc.calibration.fit import shown
from planc.calibration.fit_machine import Calibrated, rounded
from planc.calibration.probes import Measured, predicted_s
from planc.cli.views.report_text import seconds, size, strong
from planc.cli.views.table import table
from planc.trainer.telemetry.chart import Across, Curve, plot


def facts(found: Calibrated) -> dict[str, Any]:
    """`found` as JSON of the format `planc.calibration/1`."""
    return {
        "format": "planc.calibration/1",
        "parameters": [
            {"name": p.name, "field": p.field, "place": p.place, "unit": p.unit, "value": value, "prior": p.prior}
            for p, value in zip(found.parameters, found.values, strict=True)
        ],
        "chip": asdict(found.cluster.chip),
        "probes": [
            {**m.probe.to_json(), "measured_s": m.seconds, "fitted_s": predicted_s(m.probe, found.cluster)}
            for m in found.probes
        ],
        "steps": [
            {"name": s.name, "measured_s": s.seconds, "fitted_s": s.predicted_s(found.cluster)} for s in found.steps
        ],
    }


def lines(found: Calibrated, width: int) -> Iterator[str]:
    """Lines of `found` in `width` columns: numbers, errors by kind of probe, whole steps, and the collectives'
    curves."""
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
            [s.name, seconds(s.seconds), seconds(p := s.predicted_s(found.cluster)), f"{p / s.seconds - 1:+.1%}"]
            for s in found.steps
        ]
        yield from table(("", "measured", "fitted", "error"), steps, left=1)
    for name, group in _groups(found).items():
        if group[0].probe.kind == "collective" and group[0].probe.op in ("all_gather", "all_reduce"):
            yield ""
            yield f"{strong(name)}, seconds by bytes"
            yield curve(found, group, min(width, 80))


def _groups(found: Calibrated) -> dict[str, list[Measured]]:
    groups: dict[str, list[Measured]] = {}
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


def curve(found: Calibrated, group: list[Measured], width: int) -> str:
    """A picture of measured and fitted seconds of the probes in `group`, one kind, both scales logarithmic."""
    ordered = sorted(group, key=lambda m: m.probe.scale)
    drawn = [
        Curve("measured", tuple(log10(m.seconds) for m in ordered)),
        Curve("fitted", tuple(log10(predicted_s(m.probe, found.cluster)) for m in ordered)),
    ]
    across = Across(tuple(size(m.probe.scale) for m in ordered), "")
    return plot(drawn, width, 8, across=across, say=lambda value: seconds(10**value).replace(" ", ""))
