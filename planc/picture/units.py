"""Formats numbers for people, each with its unit."""

from __future__ import annotations

from collections.abc import Sequence


def seconds(value: float) -> str:
    """Return `value` (seconds) as text, with a unit by its size: `1.20 s`, `3.4 ms`, `56 us`."""
    if value >= 1 or value == 0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


def count(value: float) -> str:
    """Return the number `value` as text, with a suffix by its size: `1.20 T`, `3.40 B`, `5.60 M`, `7,800`."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value:,.0f}"


def counted(number: int, thing: str) -> str:
    """Return `number` with the noun `thing`, in the plural unless it is one: `1 field`, `3 fields`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def approximate(fields: Sequence[str]) -> str:
    """Return `approximate: 2 fields` for the `fields` that a plan says only nearly; "" without any."""
    return f"approximate: {counted(len(fields), 'field')}" if fields else ""


def size(value: float) -> str:
    """Return `value` (bytes) as text, with a decimal unit by its size: `1.2 GB`, `345 B`."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"


def gib(value: float) -> str:
    """Return `value` (GiB) as text without the unit; the smaller the value, the more decimals."""
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.3f}" if value < 0.05 else f"{value:.2f}"


def percent(share: float) -> str:
    """Return `share`, a fraction, as text in percent: `8.3 %`, or `0.04 %` if one decimal would show zero.

    >>> percent(0.0826), percent(0.0004), percent(0.0)
    ('8.3 %', '0.04 %', '0.0 %')
    """
    return f"{share:.2%}".replace("%", " %") if 0 < abs(share) < 0.0005 else f"{share:.1%}".replace("%", " %")


def rate(value: float, unit: str) -> str:
    """Return `value` (in `unit` per second) as text, with a prefix by its size: `989 TFLOP/s`, `450 GB/s`."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}/s"
    return f"{value:.3g} {unit}/s"


def days(value: float) -> str:
    """Return `value` (days) as text in days, or in hours if it is less than one day: `29.7 days`, `5.3 hours`.

    >>> days(29.68), days(0.22)
    ('29.7 days', '5.3 hours')
    """
    return f"{value:,.1f} days" if value >= 1 else f"{value * 24:.1f} hours"


def money(value: float, currency: str) -> str:
    """Return `value`, an amount of `currency`, as text: `1.84 MUSD`, `30.7 kUSD`, `2.50 USD`.

    >>> money(1_840_000.0, "USD"), money(30_720.0, "EUR"), money(2.5, "USD")
    ('1.84 MUSD', '30.7 kEUR', '2.50 USD')
    """
    if value >= 1e6:
        return f"{value / 1e6:,.2f} M{currency}"
    return f"{value / 1e3:.1f} k{currency}" if value >= 1e4 else f"{value:,.2f} {currency}"
