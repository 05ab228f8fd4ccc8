"""The units of the language, by quantity. A prefix with `i` (GiB) is binary; all others are decimal."""

from __future__ import annotations

CURRENCIES = ("USD", "EUR", "GBP", "CHF", "CNY", "JPY", "INR")
"""Currencies by their ISO 4217 codes; `k` before one is a thousand, `M` a million."""

UNITS: dict[str, dict[str, float]] = {
    "memory": {
        "B": 1,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
        "TiB": 2**40,
        "kB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "TB": 1e12,
    },
    "bandwidth": {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    "compute": {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "time": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    "share": {"%": 0.01},
    "count": {"": 1.0},
    "tokens": {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12},
    "money": {f"{p}{c}": f for c in CURRENCIES for p, f in (("", 1.0), ("k", 1e3), ("M", 1e6))},
}
"""Factors from each unit to bytes, bytes per second, FLOP per second, seconds, a fraction, a number, tokens, or
money."""


def kind_of(unit: str) -> str:
    """Return the quantity that `unit` measures, a key of UNITS; "" for an unknown unit."""
    return next((kind for kind, units in UNITS.items() if unit in units), "")
