"""The answer of `planc search` for several clusters as text: a row for each cluster, and the recommended ones."""

from __future__ import annotations

from collections.abc import Iterator

from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.compare.clusters import Clusters, OnCluster
from planc.ir.target import NO_TARGET
from planc.picture.units import count, days, money, seconds

NO_BOUND = float("inf")
HEADS = ("", "cluster", "devices", "target", "step", "MFU", "run", "device hours", "price", "layout")


def lines(found: Clusters) -> Iterator[str]:
    """Yield the answer `found` as text. A star marks clusters on the Pareto front of days and price."""
    yield f"{strong(found.file)}: the best layout on {len(found.rows)} clusters"
    front = {id(row) for row in found.pareto}
    rows = [_row(row, "*" if id(row) in front else "", found.currency) for row in found.rows]
    yield from table(HEADS, rows, left=2, left_last=True)
    yield "* no other is as fast and as cheap" if found.currency else "* the fastest; a price is missing"
    yield ""
    if found.currency:
        yield _cheapest(found)
    yield _fastest(found)


def _row(row: OnCluster, star: str, currency: str) -> tuple[str, ...]:
    run, best = row.run, row.best
    if best is None or run is None or run.device_hours is None:
        return (star, row.cluster, *("-",) * 7, row.why)
    price = money(row.price, run.currency) if run.price is not None and run.currency else "-"
    of = row.target or NO_TARGET
    figures = (f"{row.devices:,}", of, seconds(best.time_s), f"{best.step.mfu:.1%} of {best.step.peak}", days(row.days))
    return (star, row.cluster, *figures, count(run.device_hours), price, best.label or "the plan's own")


def _cheapest(found: Clusters) -> str:
    limit = "" if found.limits.days == NO_BOUND else f" that is done in {found.limits.days:g} days"
    return f"the cheapest{limit}: {_named(found.cheapest, found.currency)}"


def _fastest(found: Clusters) -> str:
    limit = "" if found.limits.price == NO_BOUND else f" for {money(found.limits.price, found.currency)}"
    return f"the fastest{limit}: {_named(found.fastest, found.currency)}"


def _named(row: OnCluster | None, currency: str) -> str:
    if row is None:
        return "none"
    return f"{row.cluster}, {days(row.days)}" + (f", {money(row.price, currency)}" if currency else "")
