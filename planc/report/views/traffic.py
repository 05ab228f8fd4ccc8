"""The traffic view: bytes and seconds of collectives by mesh axis, with the network level (NVLink, rail, spine) that
each axis spans."""

from __future__ import annotations

from planc.picture.charts import Bar, BarPart, stacked_bars
from planc.picture.marks import Picture
from planc.picture.units import percent, seconds, size
from planc.report.data import Data, PageSubject

PARTS = (BarPart("exposed_comm", "exposed: the step waits"), BarPart("beside", "hidden behind compute"))


class TrafficRow(Data):
    """Collectives of one kind on the slowest stage, per device and step."""

    op: str
    carries: str
    phase: str
    calls: int
    payload_bytes: float
    wire_bytes: float
    time_s: float
    exposed_s: float


class AxisTraffic(Data):
    """Collectives over one axis (or several together), and the outermost level that they span."""

    axis: str
    group_size: int
    level: str
    payload_bytes: float
    wire_bytes: float
    time_s: float
    exposed_s: float
    rows: tuple[TrafficRow, ...]


class Traffic(Data):
    """Traffic view: one device of the slowest stage, one step."""

    stage: int
    axes: tuple[AxisTraffic, ...]
    payload_bytes: float
    wire_bytes: float
    time_s: float
    exposed_s: float
    summary: str


def traffic(subject: PageSubject) -> Traffic:
    """Return the collectives of the slowest stage of `subject`, by axis and kind. Axes are sorted by exposed seconds,
    most first."""
    costed = subject.costed
    groups: dict[tuple[str, int, str], dict[tuple[str, str, str], list[TrafficRow]]] = {}
    for timed in costed.collectives:
        row = timed.row
        if row.stage != costed.slowest:
            continue
        kinds = groups.setdefault((row.axis, row.group_size, timed.level), {})
        kinds.setdefault((row.op, row.carries, row.phase), []).append(
            TrafficRow(
                op=row.op,
                carries=row.carries,
                phase=row.phase,
                calls=row.count,
                payload_bytes=row.payload_bytes,
                wire_bytes=row.wire_bytes,
                time_s=timed.time_s,
                exposed_s=timed.exposed_s,
            )
        )
    axes = sorted((_axis(*key, kinds) for key, kinds in groups.items()), key=lambda a: (-a.exposed_s, -a.time_s))
    return Traffic(
        stage=costed.slowest,
        axes=tuple(axes),
        payload_bytes=sum(a.payload_bytes for a in axes),
        wire_bytes=sum(a.wire_bytes for a in axes),
        time_s=sum(a.time_s for a in axes),
        exposed_s=sum(a.exposed_s for a in axes),
        summary=_message(axes, costed.step.time_s),
    )


def _axis(axis: str, group_size: int, level: str, kinds: dict[tuple[str, str, str], list[TrafficRow]]) -> AxisTraffic:
    rows = tuple(_sum(of) for of in kinds.values())
    return AxisTraffic(
        axis=axis,
        group_size=group_size,
        level=level,
        payload_bytes=sum(r.payload_bytes for r in rows),
        wire_bytes=sum(r.wire_bytes for r in rows),
        time_s=sum(r.time_s for r in rows),
        exposed_s=sum(r.exposed_s for r in rows),
        rows=rows,
    )


def _sum(rows: list[TrafficRow]) -> TrafficRow:
    first = rows[0]
    return TrafficRow(
        op=first.op,
        carries=first.carries,
        phase=first.phase,
        calls=sum(r.calls for r in rows),
        payload_bytes=sum(r.payload_bytes for r in rows),
        wire_bytes=sum(r.wire_bytes for r in rows),
        time_s=sum(r.time_s for r in rows),
        exposed_s=sum(r.exposed_s for r in rows),
    )


def _message(axes: list[AxisTraffic], step_s: float) -> str:
    if not axes:
        return "No device sends anything."
    first = axes[0]
    total, exposed = sum(a.payload_bytes for a in axes), sum(a.exposed_s for a in axes)
    return (
        f"A device of the slowest stage moves {size(total)} a step and waits {seconds(exposed)} for it"
        f" ({percent(exposed / step_s)} of the step). Most of that is over {first.axis} {first.group_size}, on"
        f" {first.level}: {seconds(first.exposed_s)} for {size(first.payload_bytes)}."
    )


def picture(data: Traffic, width: float) -> Picture | None:
    """Return a bar for each axis of `data` with its seconds of collectives, exposed and hidden, `width` pixels wide;
    None if there are no collectives."""
    if not data.axes:
        return None
    rows = [
        Bar(
            f"{a.axis} {a.group_size} · {a.level}",
            (a.exposed_s, max(0.0, a.time_s - a.exposed_s)),
            f"{size(a.payload_bytes)}, {seconds(a.exposed_s)} exposed" if width > 500 else size(a.payload_bytes),
        )
        for a in data.axes
    ]
    title = "Collectives by axis and level: seconds, exposed and hidden, with bytes"
    return stacked_bars(rows, PARTS, title=title, summary=data.summary, unit="seconds a step", width=width)
