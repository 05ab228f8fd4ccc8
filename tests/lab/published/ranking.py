"""Layouts of one model, devices and batch in the order of their predicted times, beside the measured order."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from planc.diag.fast_dataclass import dataclass
from tests.lab.published.predict import Predicted


@dataclass(frozen=True)
class Ranking:
    """Layouts of one model, devices and batch, in the order of their predicted times."""

    rows: int
    spearman: float
    loss: float
    """Time lost by running the layout that is predicted to be the fastest."""


FEWEST_LAYOUTS = 5
"""Groups of the sweep with fewer layouts are not ranked."""


def rankings(found: Sequence[Predicted]) -> tuple[Ranking, ...]:
    """One ranking of the rows `found` for each model, number of devices and batch of the sweep."""
    groups: dict[tuple[Any, ...], list[Predicted]] = {}
    for p in found:
        model = p.row.model
        groups.setdefault((model["layers"], model["d_model"], p.row.devices, p.row.sequences), []).append(p)
    return tuple(ranking(group) for group in groups.values() if len(group) >= FEWEST_LAYOUTS)


def ranking(group: Sequence[Predicted]) -> Ranking:
    """Spearman's rank correlation of predicted and measured times over `group`, and the loss of the first choice.

    The loss is the measured time of the layout with the shortest prediction over the shortest measured one, less one.
    """
    predicted_s, measured = [p.predicted_s for p in group], [p.measured_s for p in group]
    first = min(group, key=lambda p: p.predicted_s)
    return Ranking(len(group), correlation(ranks(predicted_s), ranks(measured)), first.measured_s / min(measured) - 1)


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each of `values` in ascending order, from 0; equal values share the mean of theirs."""
    order = sorted(values)
    return [fmean((order.index(v), len(order) - 1 - order[::-1].index(v))) for v in values]


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's correlation of `one` and `other`, -1 to 1; 1 when one of them does not vary."""
    a, b = fmean(one), fmean(other)
    both = sum((x - a) * (y - b) for x, y in zip(one, other, strict=True))
    size = sum((x - a) ** 2 for x in one) * sum((y - b) ** 2 for y in other)
    return float(both / size**0.5) if size else 1.0
