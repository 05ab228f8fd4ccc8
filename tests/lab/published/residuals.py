"""How far published runs were from their predictions, by class: what `planc.calibration.intervals` reads.

The ratios are of measured over predicted values, each run predicted with the numbers fitted without its publisher. An
interval lies between their quantiles. In a class of several frameworks or chips each of them counts for a few runs at
most, so that the one that published most does not speak for the others; in the class of strangers each framework counts
the same.

Coverage is counted by leaving out: a run's interval is made again from the others, without this run alone, without all
runs of its publisher, and without all of its publisher, its framework or its chip: what a stranger meets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from math import exp, log
from typing import Any

from planc.calibration.intervals import NO_NUMBERS, SHARE, STRANGERS, Quantity, Ratios, Subject, narrowest, subject_of
from planc.diag.fast_dataclass import dataclass
from tests.lab.published.allocated import Peak
from tests.lab.published.predict import Predicted, Prepared
from tests.lab.published.rows import bundled

FEWEST = 10
"""Runs that a class needs, each framework on a chip counted up to `MOST_OF_ONE`."""
MOST_OF_ONE = 4
"""Runs that one framework on one chip counts for, in a class of several."""
NEAR_STEPS = 1.15
"""Two layouts whose steps are within so many times each other are compared for `order_margin`."""


@dataclass(frozen=True)
class Residual:
    """The logarithm of measured over predicted, of one run."""

    run: str
    subject: Subject
    publisher: str
    log_ratio: float


@dataclass(frozen=True)
class Coverage:
    """Share of the runs of a class that their intervals hold, each made without the run, without its publisher, and
    without every run of its publisher, its framework or its chip."""

    group: str
    runs: int
    without_the_run: float
    without_its_publisher: float
    of_a_stranger: float


@dataclass(frozen=True)
class Spread:
    """The classes of a quantity, how many runs their intervals hold when these are left out, and the residuals."""

    classes: tuple[Ratios, ...]
    coverage: tuple[Coverage, ...]
    residuals: tuple[Residual, ...]


def residuals_of_steps(runs: Sequence[Prepared], found: Sequence[Predicted]) -> list[Residual]:
    """One residual for each of `runs`, from its prediction in `found`."""
    return [
        Residual(run.row.id, subject_of(run.sharded.plan), run.row.publisher, log(p.measured_s / p.predicted_s))
        for run, p in zip(runs, found, strict=True)
    ]


def residuals_of_memory(
    runs: Sequence[Prepared], found: Sequence[Predicted], allocated: Sequence[Peak]
) -> list[Residual]:
    """Residuals of published peaks: of the `runs` that print one, predicted in `found`, and of the `allocated` ones."""
    printed = [
        Residual(run.row.id, subject_of(run.sharded.plan), run.row.publisher, -log(1 + p.memory_error))
        for run, p in zip(runs, found, strict=True)
        if p.memory_error is not None
    ]
    return printed + [
        Residual(p.row.id, p.subject, p.row.publisher, log(p.measured_gib / p.predicted_gib)) for p in allocated
    ]


def spread(found: Sequence[Residual], quantity: Quantity, not_fitted: Sequence[Residual] = ()) -> Spread:
    """The classes of a `quantity` from the residuals `found`, and their coverage; those of the step also of chips
    without measured numbers, from the residuals of predictions `not_fitted`."""
    names = dict.fromkeys(name for r in found for name in r.subject.classes(quantity))
    classes = [c for name in names if (c := _class(name, found, quantity)) is not None]
    if not_fitted:
        classes.append(_ratios(NO_NUMBERS, [(r, 1.0) for r in not_fitted]))
    return Spread(tuple(sorted(classes, key=lambda c: c.of)), tuple(_coverage(found, quantity)), tuple(found))


def bundled_residuals(quantity: Quantity) -> list[Residual]:
    """The residuals of a `quantity` in `data/residuals.json`, as `make docs` found them."""
    return [
        Residual(r["run"], Subject(r["chip"], r["kind"], r["framework"]), r["publisher"], log(r["ratio"]))
        for r in bundled("residuals.json")[quantity]
    ]


def _class(name: str, found: Sequence[Residual], quantity: Quantity) -> Ratios | None:
    """The class called `name`; None if it has too few runs."""
    members = [r for r in found if name in r.subject.classes(quantity)]
    if members and name == STRANGERS:
        alike = Counter(r.subject.framework for r in members)
        return _ratios(name, [(r, 1 / alike[r.subject.framework]) for r in members])
    counts = Counter(_narrowest(r, quantity) for r in members)
    most = len(members) if set(counts) == {name} else MOST_OF_ONE
    if sum(min(most, n) for n in counts.values()) < FEWEST:
        return None
    return _ratios(name, [(r, min(1.0, most / counts[_narrowest(r, quantity)])) for r in members])


def _narrowest(r: Residual, quantity: Quantity) -> str:
    return next(r.subject.classes(quantity))


def _ratios(name: str, members: Sequence[tuple[Residual, float]]) -> Ratios:
    weighted = [(r.log_ratio, weight) for r, weight in members]
    low, high = (exp(quantile(weighted, share)) for share in ((1 - SHARE) / 2, (1 + SHARE) / 2))
    chips, frameworks = ({getattr(r.subject, of) for r, _ in members} for of in ("chip", "framework"))
    return Ratios(name, len(members), low, high, tuple(sorted(chips)), tuple(sorted(frameworks)))


def quantile(weighted: Iterable[tuple[float, float]], share: float) -> float:
    """The value below which a `share` of all runs lies, judged by the values and weights of some.

    With few runs it lies further out than the same share of theirs: of n runs, the next one is below the k-th with
    probability k / (n + 1).
    """
    found = sorted(weighted)
    whole = sum(weight for _, weight in found)
    runs = whole**2 / sum(weight**2 for _, weight in found)
    wanted = (share * (runs + 1) - 0.5) / runs
    below, middles = 0.0, []
    for value, weight in found:
        middles.append(((below + weight / 2) / whole, value))
        below += weight
    for (left, low), (right, high) in pairwise(middles):
        if wanted <= right:
            return low + (high - low) * max(0.0, wanted - left) / (right - left)
    return middles[-1][1]


# Coverage.


def _coverage(found: Sequence[Residual], quantity: Quantity) -> Iterator[Coverage]:
    groups: dict[str, list[tuple[bool, ...]]] = {}
    for r in found:
        name, alone = _held(r, [o for o in found if o is not r], quantity)
        strangers = [o for o in found if not _akin(r, o)]
        inside = (alone, *(_held(r, o, quantity)[1] for o in (_of_others(r, found), strangers)))
        for group in dict.fromkeys(("all", r.subject.kind, name)):
            groups.setdefault(group, []).append(inside)
    for group, each in sorted(groups.items(), key=lambda item: (item[0] != "all", item[0].count(","), item[0])):
        yield Coverage(group, len(each), *(sum(one) / len(each) for one in zip(*each, strict=True)))


def _of_others(r: Residual, found: Sequence[Residual]) -> list[Residual]:
    return [o for o in found if o.publisher != r.publisher]


def _akin(r: Residual, other: Residual) -> bool:
    """True if both runs have their publisher, their framework or their chip in common."""
    a, b = r.subject, other.subject
    return r.publisher == other.publisher or a.framework == b.framework or a.chip == b.chip


def _held(r: Residual, others: Sequence[Residual], quantity: Quantity) -> tuple[str, bool]:
    """The class of a residual among the `others`, and whether its interval holds it."""
    found = narrowest(r.subject, quantity, lambda name: _class(name, others, quantity))
    return (found.of, found.low <= exp(r.log_ratio) <= found.high) if found else ("none", False)


# Layouts of one model on one machine.


def order_margin(found: Iterable[Predicted]) -> float:
    """The ratio of two layouts' predicted steps, less one, from which on the slower one is the slower one when measured
    in `SHARE` of pairs of the published runs `found`.

    Pairs are runs of one publisher, model, machine and batch in two layouts whose predicted steps are near each other;
    each group of them counts the same, and without any pair it is 0. How far their ratios were off has either sign, so
    that the order is as predicted in all pairs that are off by less than the ratio and in half of the others.
    """
    groups: dict[Hashable, list[Predicted]] = {}
    for p in found:
        groups.setdefault(_task(p), []).append(p)
    pairs = list(_apart(groups.values()))
    return exp(quantile(pairs, 2 * SHARE - 1)) - 1 if pairs else 0.0


def _apart(groups: Iterable[Sequence[Predicted]]) -> Iterator[tuple[float, float]]:
    for group in groups:
        pairs = [
            (abs(log(a.predicted_s / b.predicted_s)), abs(log((a.error + 1) / (b.error + 1))))
            for a, b in combinations(group, 2)
            if a.row.facts["parallel"] != b.row.facts["parallel"]
        ]
        near = [off for ratio, off in pairs if ratio <= log(NEAR_STEPS)]
        yield from ((off, 1 / len(near)) for off in near)


def _task(p: Predicted) -> Hashable:
    model = {key: str(value) for key, value in p.row.model.items() if key != "name"}
    return (p.row.publisher, p.row.chip, p.row.devices, p.row.sequence, p.row.sequences, *sorted(model.items()))


def as_facts(steps: Spread, memory: Spread, apart: float) -> dict[str, Any]:
    """The content of `data/intervals.json`: classes of `steps` and of `memory`, and the margin `apart`."""
    return {
        "step": [_row(c) for c in steps.classes],
        "memory": [_row(c) for c in memory.classes],
        "order_margin": round(apart, 3),
    }


def residual_facts(r: Residual) -> dict[str, Any]:
    """The residual `r` as `data/residuals.json` has it."""
    s = r.subject
    about = {"run": r.run, "chip": s.chip, "kind": s.kind, "framework": s.framework, "publisher": r.publisher}
    return {**about, "ratio": round(exp(r.log_ratio), 4)}


def _row(c: Ratios) -> dict[str, Any]:
    ends = {"low": round(c.low, 3), "high": round(c.high, 3)}
    return {"of": c.of, "runs": c.runs, **ends, "chips": [*c.chips], "frameworks": [*c.frameworks]}
