"""Peaks of allocated memory, as published runs print them, beside those of their plans.

Two runs that differ in one field differ by what that field is about: what a run holds whatever its plan cancels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any

from planc.calibration.intervals import Subject, subject_of
from planc.diag.fast_dataclass import dataclass
from tests.lab.published.plans import unusable
from tests.lab.published.predict import Prepared, prepare
from tests.lab.published.rows import Row, bundled

MIN_GIB = 0.2
"""Differences below it are near the constant overhead's own changes."""


@dataclass(frozen=True)
class Peak:
    """A run's peak of allocated memory on one rank, in GiB, published and predicted."""

    row: Row
    subject: Subject
    measured_gib: float
    predicted_gib: float

    @property
    def error(self) -> float:
        """Relative error of the peak, a fraction: predicted over measured, less one."""
        return self.predicted_gib / self.measured_gib - 1


@dataclass(frozen=True)
class Difference:
    """Two runs that differ in one field, and by how much their peaks differ, in GiB."""

    one: Row
    other: Row
    field: str
    measured_gib: float
    predicted_gib: float

    @property
    def error(self) -> float:
        """Relative error of the difference, a fraction: predicted over measured, less one."""
        return self.predicted_gib / self.measured_gib - 1


@cache
def more_rows() -> tuple[Row, ...]:
    """The second collection of published runs: training runs, and some that print memory alone."""
    return tuple(Row(facts) for facts in bundled("more.json"))


def unused_rows() -> dict[str, int]:
    """Reasons why rows of the second collection that print an allocated peak are no plans, with the number of each."""
    why = [unusable(row) for row in more_rows() if _printed(row) is not None]
    return {reason: why.count(reason) for reason in sorted(set(why) - {""})}


def peaks() -> tuple[Peak, ...]:
    """Allocated peaks of the second collection's runs that are plans, in order."""
    rows = [row for row in more_rows() if _printed(row) is not None and not unusable(row)]
    return tuple(peak(prepare(row)) for row in rows)


def peak(run: Prepared) -> Peak:
    """The allocated peak of a prepared row that prints one, on the rank that it names: the last, else the fullest."""
    measured = _printed(run.row)
    assert measured is not None
    memory = run.cost().memory
    last = str(run.row.facts["measured"].get("memory_rank", "")).startswith("last")
    stage = memory.stages[-1] if last else memory.worst
    return Peak(run.row, subject_of(run.sharded.plan), measured, stage.per_device_gib.tensors)


def _printed(row: Row) -> float | None:
    value = row.facts["measured"].get("memory_allocated_gib")
    return None if value is None else float(value)


def differences(found: Sequence[Peak]) -> tuple[Difference, ...]:
    """Every two of the peaks `found` whose runs differ in one field, and in memory by more than `MIN_GIB`."""
    return tuple(_differences(found))


def _differences(found: Sequence[Peak]) -> Iterator[Difference]:
    facts = {id(p): _flat(p.row) for p in found}
    for one, other in combinations(found, 2):
        a, b = facts[id(one)], facts[id(other)]
        unlike = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
        apart = other.measured_gib - one.measured_gib
        if len(unlike) == 1 and abs(apart) > MIN_GIB:
            yield Difference(one.row, other.row, unlike[0], apart, other.predicted_gib - one.predicted_gib)


IRRELEVANT = (
    "name",
    "toy",
    "environment",
    "flags",
    "grad_accum",
    "dp",
    "chip",
    "n_devices",
    "devices_per_node",
    "detail",
)
"""Fields that follow from others, or that change no memory."""


def _flat(row: Row) -> dict[str, Any]:
    """The fields of a row that its memory follows from."""
    found: dict[str, Any] = {"framework": row.facts["framework"]}
    for section in ("model", "parallel", "batch", "options"):
        for key, value in row.facts[section].items():
            if key not in IRRELEVANT and value not in (None, False):
                found[f"{section}.{key}"] = json.dumps(value)
    return found
