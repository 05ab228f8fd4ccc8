"""Scales: convert values to pixel positions, and choose the round numbers at which an axis has ticks."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log10
from typing import NamedTuple


class Scale(NamedTuple):
    """A linear scale from `low` to `high` over the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def px(self, value: float) -> float:
        """Return the pixel position of `value`.

        >>> Scale(0, 10, 100, 200).px(5)
        150.0
        """
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return at most `most` round numbers within the scale, in equal steps of 1, 2 or 5 times a power of ten.

        >>> Scale(0, 10.9, 0, 1).ticks()
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        """
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        step = next(s for s in _round_steps(span / most) if span / s <= most)
        first = ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, floor(self.high / step + 1e-9) + 1)]


def _round_steps(minimum: float) -> Iterator[float]:
    power = 10.0 ** floor(log10(minimum))
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


class LogScale(NamedTuple):
    """A logarithmic scale from `low` to `high`, both positive, over the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def px(self, value: float) -> float:
        """Return the pixel position of `value`.

        >>> LogScale(1, 100, 0, 200).px(10)
        100.0
        """
        span = log10(self.high / self.low) or 1.0
        return self.start + log10(value / self.low) / span * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the powers of ten within the scale.

        >>> LogScale(0.5, 200, 0, 1).ticks()
        [1.0, 10.0, 100.0]
        """
        return [10.0**p for p in range(ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Return the text of a tick at `value`, without superfluous digits.

    >>> tick_text(2.0), tick_text(0.05), tick_text(12000.0)
    ('2', '0.05', '12,000')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
