"""The page of a search over several clusters, `planc.report.clusters/1`: days against price, and one row per
cluster."""

from __future__ import annotations

from math import isinf
from typing import Literal

from planc.compare.clusters import Clusters, OnCluster
from planc.picture.charts import Bar, stacked_bars
from planc.picture.marks import Circle, Mark, Picture, StraightLine, Text, clipped, text_px
from planc.picture.marks import Path as Curve
from planc.picture.scales import Scale, tick_text
from planc.picture.units import count, days, gib, money, percent, seconds
from planc.report.data import Data, PageView
from planc.report.diff_page import StepParts
from planc.report.parts import STEP_PARTS
from planc.report.plan_page import Number
from planc.report.search_page import SearchVerdict
from planc.version import __version__

UNITS = ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"))
"""Units of the price axis."""


class ClusterRow(Data):
    """One cluster with its best layout. Without one, `why` gives the reason, and there are no figures."""

    number: int
    """Its position among the given clusters, from 1."""
    cluster: str
    devices: int
    on_front: bool
    """True if it is Pareto-optimal: no other cluster is as fast and as cheap."""
    days: float | None
    device_hours: float | None
    price: float | None
    time_s: float | None
    mfu: float | None
    peak: str
    """The peak that `mfu` refers to; "" without a layout."""
    memory_gib: float | None
    step: StepParts | None
    layout: str
    text: str
    """The plan file on this cluster; "" without a layout."""
    why: str


class Pareto(Data):
    """Days of the run against its price, in `currency`. Limits are those of the plan's `expect` sentences."""

    rows: tuple[ClusterRow, ...]
    currency: str
    most_days: float | None
    most_price: float | None
    summary: str


class Table(Data):
    """One row per cluster, in the given order."""

    rows: tuple[ClusterRow, ...]
    currency: str
    summary: str


class ClustersPage(Data):
    """The content of a page about a search over several clusters."""

    format: Literal["planc.report.clusters/1"] = "planc.report.clusters/1"
    planc_version: str
    file: str
    verdict: SearchVerdict
    pareto: Pareto | None
    """None if a price is missing, or if no cluster has a layout."""
    clusters: Table
    text: str
    """The file that was searched."""
    command: str

    @property
    def title(self) -> str:
        """The title of the page: the file and the answer."""
        return f"{self.file}: {self.verdict.headline}"


def clusters_page(found: Clusters, file: str, text: str, command: str) -> ClustersPage:
    """Return the page of a search over several clusters.

    Args:
        found: the search's result.
        file: name of the plan file that was searched.
        text: the text of this file.
        command: the command line that writes the page, shown on it.
    """
    front = {id(row) for row in found.pareto}
    rows = tuple(_row(i, row, id(row) in front) for i, row in enumerate(found.rows, 1))
    drawn = bool(found.currency) and any(row.days is not None for row in rows)
    return ClustersPage(
        planc_version=__version__,
        file=file,
        verdict=_verdict(found, file),
        pareto=_pareto(found, rows) if drawn else None,
        clusters=Table(rows=rows, currency=found.currency, summary=_rows_message(rows)),
        text=text,
        command=command,
    )


def _row(number: int, row: OnCluster, on_front: bool) -> ClusterRow:
    best, run = row.best, row.run
    return ClusterRow(
        number=number,
        cluster=row.cluster,
        devices=row.devices,
        on_front=on_front,
        days=run.days if run else None,
        device_hours=run.device_hours if run else None,
        price=run.price if run else None,
        time_s=best.time_s if best else None,
        mfu=best.step.mfu if best else None,
        peak=best.step.peak if best else "",
        memory_gib=best.memory_gib if best else None,
        step=StepParts(**{name: getattr(best.step, name) for name in StepParts.model_fields}) if best else None,
        layout=(best.label or "the plan's own") if best else "",
        text=best.text if best else "",
        why=row.why,
    )


def _verdict(found: Clusters, file: str) -> SearchVerdict:
    fastest, cheapest = found.fastest, found.cheapest
    held = sum(row.best is not None for row in found.rows)
    counted = f"{held} of {len(found.rows)} clusters hold a layout of {file}."
    limit = "" if isinf(found.limits.days) else f" that is done in {found.limits.days:g} days"
    budget = "" if isinf(found.limits.price) else f" for {money(found.limits.price, found.currency)}"
    said = [f"The cheapest{limit}: {_answer_text(cheapest, found.currency)}."] if found.currency else []
    said.append(f"The fastest{budget}: {_answer_text(fastest, found.currency)}.")
    numbers = [*_numbers("Cheapest", cheapest, found.currency)] if found.currency else []
    numbers += _numbers("Fastest", fastest, found.currency)
    if fastest is None and cheapest is None:
        headline = "no cluster is within the limits" if held else "no cluster holds a layout"
    else:
        headline = " ".join(said)
    return SearchVerdict(sentence=" ".join((*said, counted)), numbers=tuple(numbers), headline=headline)


def _answer_text(row: OnCluster | None, currency: str) -> str:
    if row is None:
        return "none"
    return f"{row.cluster}, {days(row.days)}" + (f", {money(row.price, currency)}" if currency else "")


def _numbers(name: str, row: OnCluster | None, currency: str) -> list[Number]:
    """Return the days and the price of the run on the cluster `row`, labelled `name`; [] if `row` is None."""
    if row is None:
        return []
    found = [Number(name=f"{name}: the run", value=row.days, unit="days", text=days(row.days), of=row.cluster)]
    if currency:
        text = money(row.price, currency)
        found.append(Number(name=f"{name}: its price", value=row.price, unit=currency, text=text, of=row.cluster))
    return found


def _pareto(found: Clusters, rows: tuple[ClusterRow, ...]) -> Pareto:
    on_front = [row.cluster for row in rows if row.on_front]
    beaten = sum(row.days is not None and not row.on_front for row in rows)
    said = f"No other cluster is as fast and as cheap as {', '.join(on_front)}"
    said += f"; {beaten} {'is' if beaten == 1 else 'are'} beaten in both." if beaten else "."
    return Pareto(
        rows=rows,
        currency=found.currency,
        most_days=None if isinf(found.limits.days) else found.limits.days,
        most_price=None if isinf(found.limits.price) else found.limits.price,
        summary=said,
    )


def _rows_message(rows: tuple[ClusterRow, ...]) -> str:
    without = sum(row.days is None for row in rows)
    said = f"The best layout on each of {len(rows)} clusters, in the order asked for"
    return said + (f"; {without} {'has' if without == 1 else 'have'} none, and why." if without else ".")


# Pictures.


def pareto_picture(data: Pareto, width: float) -> Picture:
    """Return a scatter plot of days against price for the clusters in `data`, `width` pixels wide."""
    points = [(row, row.days, row.price) for row in data.rows if row.days is not None and row.price is not None]
    lengths, prices = [d for _, d, _ in points], [p for _, _, p in points]
    bounds_days = [*lengths, *((data.most_days,) if data.most_days else ())]
    bounds_price = [*prices, *((data.most_price,) if data.most_price else ())]
    unit, word = next(((u, w) for u, w in UNITS if max(bounds_price) >= u), (1.0, ""))
    left, top, bottom = 44.0, 40.0, 300.0
    across = _padded(bounds_days, left, width - 12)
    up = _padded([p / unit for p in bounds_price], bottom, top)
    marks: list[Mark] = []
    for tick in up.ticks(5):
        marks += [
            StraightLine(left, up.px(tick), width - 12, up.px(tick), "grid"),
            Text(left - 6, up.px(tick) + 4, tick_text(tick), "small", "end"),
        ]
    for tick in across.ticks(7 if width > 500 else 4):
        marks.append(Text(across.px(tick), bottom + 16, tick_text(tick), "small", "middle"))
    marks += [
        Text(0, 14, f"price of the run, {word} {data.currency}".replace("  ", " "), "small"),
        Text(width - 12, bottom + 32, "days of the run", "small", "end"),
        *_limits(data, across, up, unit, width),
    ]
    places = sorted((d, p) for row, d, p in points if row.on_front)
    line = "L".join(f"{across.px(d):.1f} {up.px(p / unit):.1f}" for d, p in places)
    marks.append(Curve(f"M{line}", "front"))
    for row, length, price in points:
        x, y = across.px(length), up.px(price / unit)
        title = f"{row.cluster}: {days(length)}, {money(price, data.currency)}"
        marks += [
            Circle(x, y, 5, "accent" if row.on_front else "quiet", title),
            _name(row, x, y, width, "strong halo" if row.on_front else "small halo"),
        ]
    return Picture(width, bottom + 38, "Days against price", data.summary, tuple(marks))


def _padded(values: list[float], start: float, end: float) -> Scale:
    """Return a scale with a margin around `values`. It starts at 0 unless they are close together."""
    low, high = min(values), max(values)
    pad = 0.12 * (high - low) or 0.1 * high
    return Scale(0.0 if low < 0.4 * high else low - pad, high + pad, start, end)


def _limits(data: Pareto, across: Scale, up: Scale, unit: float, width: float) -> list[Mark]:
    """Return lines at the days and the price in the plan's `expect` sentences."""
    marks: list[Mark] = []
    if data.most_days:
        x, text = across.px(data.most_days), f"{data.most_days:g} days expected"
        wide = x + 6 + text_px(text) > width
        marks += [
            StraightLine(x, up.end, x, up.start, "limit"),
            Text(x - 5 if wide else x + 5, up.end + 10, text, "limit-text halo", "end" if wide else "start"),
        ]
    if data.most_price:
        y, text = up.px(data.most_price / unit), f"{money(data.most_price, data.currency)} expected"
        marks += [
            StraightLine(across.start, y, across.end, y, "limit"),
            Text(across.start + 4, y - 5, text, "limit-text halo"),
        ]
    return marks


def _name(row: ClusterRow, x: float, y: float, width: float, css: str) -> Text:
    """Return the label of a point, on its right or, if it does not fit there, on its left. On a narrow screen it is
    only the row's number."""
    text = f"{row.number}: {row.cluster}" if width > 500 else str(row.number)
    room = max(width - 12 - x - 10, x - 44 - 10)
    shown = clipped(text, room)
    if x + 10 + text_px(shown) <= width - 12:
        return Text(x + 9, y - 7, shown, css)
    return Text(x - 9, y - 7, shown, css, "end")


def rows_picture(data: Table, width: float) -> Picture | None:
    """Return stacked bars of the step of each cluster's best layout, `width` pixels wide; None if no cluster in `data`
    has one."""
    rows = [
        Bar(
            str(row.number),
            row.step.values,
            f"{seconds(row.time_s)}, {gib(row.memory_gib)} GiB",
            strong=row.on_front,
        )
        for row in data.rows
        if row.step is not None and row.time_s is not None and row.memory_gib is not None
    ]
    if not rows:
        return None
    title = "A step on each cluster"
    return stacked_bars(rows, STEP_PARTS, title=title, summary=data.summary, unit="seconds", width=width)


def figures(row: ClusterRow, currency: str) -> dict[str, str]:
    """Return the cells of a table row as text, by column, with prices in `currency`; {} if the cluster `row` has no
    layout."""
    if row.days is None or row.device_hours is None or row.time_s is None or row.mfu is None:
        return {}
    return {
        "devices": f"{row.devices:,}",
        "step": seconds(row.time_s),
        "mfu": f"{percent(row.mfu)} of {row.peak}",
        "days": days(row.days),
        "hours": count(row.device_hours),
        "price": money(row.price, currency) if row.price is not None and currency else "-",
    }


CLUSTERS_VIEWS: tuple[PageView, ...] = (
    PageView("verdict", "Verdict"),
    PageView("pareto", "Days against price", pareto_picture),
    PageView("clusters", "The clusters", rows_picture),
    PageView("text", "What was searched"),
    PageView("command", "This page again"),
)
"""The views of a page of a search over several clusters."""
