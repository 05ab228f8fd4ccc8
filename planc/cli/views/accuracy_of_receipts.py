"""`planc report --accuracy RECEIPT...`: predicted against measured figures of runs, and their median errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from planc.cli.common import print_json
from planc.cli.views.table import table
from planc.diag.quoting import printable
from planc.files import read_json

MAX_BYTES = 1_000_000_000
"""Limit on the size of a receipt."""
QUANTITIES = {
    "step_time_s": ("step_time_s", "s"),
    "memory_gib": ("peak_memory_gib", "GiB"),
    "exposed_comm_s": ("exposed_comm_s", "s"),
}
"""Predicted figures of a receipt: the field with the measured value, and its unit."""


def run(paths: Sequence[str], *, as_json: bool) -> int:
    """Print predicted and measured figures of the receipts at `paths`, and the median error of each quantity. Return
    the exit status: 2 if a file is not a receipt (the JSON result of `planc train`)."""
    found = []
    for path in paths:
        try:
            receipt = read_json(Path(path), MAX_BYTES)
            if receipt.get("format", "planc.receipt/1") != "planc.receipt/1" or "losses" not in receipt:
                raise ValueError("not a receipt (planc.receipt/1)")
            found += pairs(path, receipt)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            print(printable(f"planc report: {path}: {error}"), file=sys.stderr)
            return 2
    if as_json:
        print_json({"rows": found, "median_abs_error": summary(found)}, "planc.accuracy/1")
    else:
        print("\n".join(lines(found)))
    return 0


def pairs(path: str, receipt: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each quantity that `receipt`, read from `path`, predicts. `error` is predicted over measured,
    minus 1."""
    predicted = receipt.get("predicted") or {}
    rows = []
    for name, (field, unit) in QUANTITIES.items():
        if predicted.get(name) is None:
            continue
        measured = receipt.get(field, (receipt.get("measured") or {}).get(field))
        if not all(value is None or _is_number(value) for value in (predicted[name], measured)):
            raise ValueError(f"{name} is no number")
        error = predicted[name] / measured - 1 if measured else None
        facts = {"receipt": path, "target": receipt.get("target"), "quantity": name, "unit": unit}
        rows.append({**facts, "predicted": predicted[name], "measured": measured, "error": error})
    return rows


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and (value == 0 or 1e-100 < abs(value) < 1e100)


def summary(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return for each quantity in the rows `found` the median of the absolute relative error, a fraction."""
    sizes: dict[str, list[float]] = {}
    for row in found:
        if row["error"] is not None:
            sizes.setdefault(row["quantity"], []).append(abs(row["error"]))
    return {name: median(values) for name, values in sizes.items()}


def lines(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of the rows `found`, then the median errors."""
    rows = [
        [
            printable(row["receipt"]),
            row["quantity"],
            f"{row['predicted']:.4g} {row['unit']}",
            "-" if row["measured"] is None else f"{row['measured']:.4g} {row['unit']}",
            "-" if row["error"] is None else f"{100 * row['error']:+.1f} %",
        ]
        for row in found
    ]
    yield from table(("receipt", "quantity", "predicted", "measured", "error"), rows, left=2)
    for name, value in summary(found).items():
        yield f"median error of {name}: {100 * value:.1f} %"
