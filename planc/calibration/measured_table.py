"""Read a table of measured runs for `planc calibrate --from`: CSV with a header, or a JSON list of objects.

Columns: `plan`, the path of a plan file; either `seconds` of a step, or `receipt`, the path of the JSON result of
`planc train`; optionally `peak_bytes`, the peak memory allocated on a device. Paths are relative to the table's folder.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span
from planc.files import MAX_TEXT_BYTES, parse_json, read_text

COLUMNS = ("plan", "seconds", "receipt", "peak_bytes")
MAX_RUNS = 10_000
MOST = 1e18
"""Upper bound on numbers in a table, seconds or bytes; larger ones are errors."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One measured run of a plan. `line` is its line in a CSV file, or its 1-based index in a JSON list."""

    line: int
    plan: str
    seconds: float | None
    """None if a receipt has them."""
    receipt: str
    peak_bytes: float | None


class TableError(ValueError):
    """An error in a table: the 1-based line, and the message."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def read_table(path: Path) -> tuple[MeasuredRun, ...]:
    """Read the runs of the table at `path`. Raises PlanError (E1036) if it cannot be read or a row is incomplete."""
    try:
        text = read_text(path, MAX_TEXT_BYTES)
        rows = list(_json_rows(text) if path.suffix.lower() == ".json" else _csv_rows(text))
        if not rows:
            raise TableError(1, "it has no runs")
        return tuple(rows)
    except TableError as error:
        raise unusable_table(path, error.line, str(error)) from None
    except OSError as error:
        raise unusable_table(path, 1, error.strerror or str(error)) from None
    except ValueError as error:
        raise unusable_table(path, 1, str(error)) from None


def unusable_table(path: Path, line: int, message: str) -> PlanError:
    """Return error E1036 with `message`, at `line` of the table at `path`."""
    return PlanError([Diagnostic("E1036", f"{path.name}: {message}", Span(str(path), line, 1, line, 1))])


def _csv_rows(text: str) -> Iterator[MeasuredRun]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), skipinitialspace=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        _check_names(names, 1)
        for cells in reader:
            if cells:
                if len(cells) != len(names):
                    raise TableError(reader.line_num, f"{len(cells)} cells, and the header has {len(names)}")
                yield _run(dict(zip(names, (c.strip() for c in cells), strict=True)), reader.line_num)
    except csv.Error as error:
        raise TableError(reader.line_num, str(error)) from None


def _json_rows(text: str) -> Iterator[MeasuredRun]:
    values = parse_json(text)
    if not isinstance(values, list) or not all(isinstance(row, dict) for row in values):
        raise TableError(1, "it is not a list of objects")
    for index, row in enumerate(values):
        _check_names([str(name) for name in row], index + 1)
        yield _run(row, index + 1)


def _check_names(names: list[str], line: int) -> None:
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise TableError(line, f"unknown column {unknown[0][:40]!r}; columns are {', '.join(COLUMNS)}")
    if len({*names}) != len(names):
        raise TableError(line, "a column is there twice")
    if "plan" not in names or not {"seconds", "receipt"} & {*names}:
        raise TableError(line, "it needs a column `plan`, and `seconds` or `receipt`")


def _run(row: dict[str, Any], line: int) -> MeasuredRun:
    if line > MAX_RUNS + 1:
        raise TableError(line, f"more than {MAX_RUNS} runs")
    plan, receipt = (row.get(name) or "" for name in ("plan", "receipt"))
    if not isinstance(plan, str) or not isinstance(receipt, str):
        raise TableError(line, "`plan` and `receipt` are names of files")
    if not plan:
        raise TableError(line, "a run without a plan")
    seconds = _number(row.get("seconds"), "seconds", line)
    if (seconds is None) == (not receipt):
        raise TableError(line, "a run has either `seconds` or a `receipt`")
    peak = _number(row.get("peak_bytes"), "peak_bytes", line)
    return MeasuredRun(line=line, plan=plan, seconds=seconds, receipt=receipt, peak_bytes=peak)


def _number(value: Any, name: str, line: int) -> float | None:
    """Parse `value` of column `name`. None if it is empty."""
    if value is None or value == "":
        return None
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if not (isfinite(number) and 0 < number <= MOST):
        raise TableError(line, f"{name} = {str(value)[:40]}: not a number above 0")
    return number
