"""The error table: published runs beside predictions, by publisher, chip and kind of model.

`in use` are the hardware files as they are. `held out` predicts each run with the parameters fitted without its
publisher (`data/fitted.json`, written by `planc.calibration.fit`). `not fitted` has every parameter at the
language's default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster
from tests.lab.published import gpt_plans
from tests.lab.published.allocated import Peak, differences, peaks
from tests.lab.published.eight_runs import EightRuns, eight_runs
from tests.lab.published.parameters import PARAMETERS, with_values
from tests.lab.published.plans import unusable
from tests.lab.published.predict import Predicted, Prepared, predicted, prepare, timed
from tests.lab.published.ranking import Ranking, rankings
from tests.lab.published.residuals import Spread, order_margin, residuals_of_memory, residuals_of_steps, spread
from tests.lab.published.rows import Row, bundled, sweep_rows, training_rows, validation_rows
from tests.lab.published.sweep import Sweep, studied


@dataclass(frozen=True)
class Errors:
    """Relative errors of a group of rows: median and 90th percentile of their size, and `bias`, the signed median."""

    group: str
    rows: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True)
class Refused:
    """Runs of a group that ran and that `planc check` refuses: for lack of memory (E0501), also by more than 10 and
    50 % of a device's memory, or by a rule about the plan alone."""

    group: str
    rows: int
    memory: int
    by_a_tenth: int
    by_half: int
    rules: int


@dataclass(frozen=True)
class Accuracy:
    """Every figure of `planc bench accuracy`."""

    held_out: tuple[Errors, ...]
    in_use: tuple[Errors, ...]
    not_fitted: tuple[Errors, ...]
    memory: tuple[Errors, ...]
    """Memory errors of the runs that print a peak: all together, then each."""
    allocated: tuple[Errors, ...]
    """Errors of the allocated peaks of the second collection: all together, then by framework."""
    one_flag: Errors
    """Errors of the differences between two of those runs that differ in one field."""
    closed_forms: tuple[Errors, ...]
    """Memory errors against published closed forms."""
    validation: tuple[Errors, ...]
    refused: tuple[Refused, ...]
    """Runs that ran and are refused: all together, then by publisher."""
    sweep: Errors
    rankings: tuple[Ranking, ...]
    traces: Sweep | None
    """Analysis of how the sweep's times were made, and of how well they can be ranked."""
    dropped: dict[str, int]
    left_out: dict[str, str]
    """Why a row is not compared, by its id."""
    step_intervals: Spread
    """Intervals of step times by class, and how many left-out runs they hold."""
    memory_intervals: Spread
    """The same of peaks of memory."""
    from_eight: tuple[EightRuns, ...]
    """Errors on a machine's other runs before and after a fit to eight of them: all together, then by machine."""
    order_margin: float
    """The ratio of two layouts' predicted steps, less one, from which on their order can be relied on."""

    @property
    def spearman(self) -> float:
        return median(r.spearman for r in self.rankings)

    @property
    def loss(self) -> float:
        return median(r.loss for r in self.rankings)


def accuracy(rows: Iterable[Row] = (), *, swept: bool = True) -> Accuracy:
    """The error table of `rows`, or of the bundled rows when there are none.

    Without `swept` the single-node sweep is left out: its errors, its rankings and the study of its times.
    """
    rows = list(rows)
    compared, why = _compared(rows or training_rows())
    runs = [run for run, _, _, _ in compared]
    used, held, plain = ([one[i] for _, *one in compared] for i in range(3))
    in_one_node = [prepare(row) for row in sweep_rows()] if swept else []
    sweep = [timed(run, lambda cluster: cluster) for run in in_one_node]
    found = [] if rows else list(peaks())
    left = [timed(run, left_out(run.row.publisher)) for run in in_one_node]
    return Accuracy(
        held_out=by_group(held),
        in_use=by_group(used),
        not_fitted=by_group(plain),
        memory=memory_errors(used),
        allocated=() if rows else allocated_errors(found),
        one_flag=errors("differences", [d.error for d in differences(found)]),
        closed_forms=() if rows else closed_forms(),
        validation=() if rows else tuple(one_row(predicted(prepare(row))) for row in validation_rows()),
        refused=refused(used),
        sweep=errors("single-node sweep", [p.error for p in sweep]),
        rankings=rankings(sweep),
        traces=studied(sweep_rows()) if swept else None,
        dropped=dict(sorted(Counter(why.values()).items())),
        left_out=why,
        step_intervals=spread(residuals_of_steps(runs, held), "step", residuals_of_steps(runs, plain)),
        memory_intervals=spread(residuals_of_memory(runs, used, found), "memory"),
        from_eight=eight_runs(runs, left_out),
        order_margin=order_margin([*held, *left]),
    )


Compared = tuple[Prepared, Predicted, Predicted, Predicted]
"""A run, and its prediction by the numbers in use, by those fitted without its publisher, and by none fitted."""


def _compared(rows: Iterable[Row]) -> tuple[list[Compared], dict[str, str]]:
    """The `rows` that are plans, predicted; and by its id, why another one is not. A row that fails ends no other's."""
    found: list[Compared] = []
    why: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        name = str(row.facts.get("id") or f"row {number}")
        try:
            if reason := unusable(row):
                why[name] = reason
                continue
            run = prepare(row)
            found.append((run, predicted(run), timed(run, left_out(row.publisher)), timed(run, not_fitted)))
        except PlanError as error:
            why[name] = "; ".join(f"{d.code} {d.message}" for d in error.diagnostics if d.severity == "error")
        except Exception as error:  # whatever it is that a row says
            why[name] = f"{type(error).__name__}: {error}"
    return found, why


# Other machines.


def left_out(publisher: str) -> Callable[[Cluster], Cluster]:
    """The change of a cluster to the values fitted without the rows of `publisher`; with all rows for an unknown
    one."""
    facts = fitted()
    values = facts["without"].get(publisher, facts["values"])
    return lambda cluster: with_values(cluster, values)


@cache
def fitted() -> dict[str, Any]:
    """The last fit's result. Its parameters are those of `PARAMETERS`; otherwise the fit must be run again."""
    facts: dict[str, Any] = bundled("fitted.json")
    assert facts["parameters"] == [p.name for p in PARAMETERS]
    return facts


def not_fitted(cluster: Cluster) -> Cluster:
    """`cluster` with every fitted parameter at the language's default."""
    from planc.language.verbs.hardware import CHIP

    default = {name: value for name, (_, value) in CHIP.items()}
    names = {p.field for p in PARAMETERS if p.place == "chip"}
    chip = replace(cluster.chip, narrow_efficiency={})
    cluster = replace(cluster, chip=chip, link=replace(cluster.link, half_bytes=0.0))
    cluster = replace(cluster, levels=tuple(replace(v, half_bytes=0.0) for v in cluster.levels))
    for parameter in PARAMETERS:
        value = default.get(parameter.field)
        if parameter.field in names and value is not None:
            cluster = parameter.put(cluster, value)
    return cluster


# Groups.


def by_group(found: Sequence[Predicted]) -> tuple[Errors, ...]:
    """Errors of the rows `found`: all, dense models, models with experts, each publisher and each chip."""
    groups: dict[str, list[float]] = {}
    for p in found:
        kind = "experts" if p.row.moe else "dense"
        for name in ("all", kind, p.row.publisher, f"{p.row.chip}, {kind}"):
            groups.setdefault(name, []).append(p.error)
    first = [name for name in ("all", "dense", "experts") if name in groups]
    publishers = sorted({p.row.publisher for p in found})
    rest = sorted(set(groups) - set(first) - set(publishers))
    return tuple(errors(name, groups[name]) for name in (*first, *publishers, *rest))


def errors(group: str, values: Sequence[float]) -> Errors:
    """Median and 90th percentile of the absolute `values` (relative errors), and their signed median; zeros for
    none."""
    if not values:
        return Errors(group, 0, 0.0, 0.0, 0.0)
    sizes = sorted(abs(v) for v in values)
    return Errors(group, len(values), median(sizes), sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))], median(values))


def memory_errors(found: Sequence[Predicted]) -> tuple[Errors, ...]:
    """Memory errors of those rows `found` that print a peak: all together, then each."""
    known = [(p, p.memory_error) for p in found if p.memory_error is not None]
    each = tuple(Errors(p.row.id, 1, abs(e), abs(e), e) for p, e in known if e is not None)
    return (errors("all", [e for _, e in known if e is not None]), *each) if known else ()


def allocated_errors(found: Sequence[Peak]) -> tuple[Errors, ...]:
    """Errors of the allocated peaks `found`: all together, then by framework."""
    groups: dict[str, list[float]] = {"all": [p.error for p in found]}
    for p in sorted(found, key=lambda p: str(p.row.facts["framework"])):
        groups.setdefault(str(p.row.facts["framework"]), []).append(p.error)
    return tuple(errors(name, values) for name, values in groups.items())


def refused(found: Sequence[Predicted]) -> tuple[Refused, ...]:
    """False alarms among the rows `found`, which all ran: all together, then by publisher and kind of chip."""
    groups: dict[str, list[Predicted]] = {"all": list(found)}
    for p in sorted(found, key=lambda p: (p.row.publisher, p.row.chip)):
        groups.setdefault(f"{p.row.publisher}, {p.row.chip}", []).append(p)
    return tuple(_refused(name, each) for name, each in groups.items())


def _refused(group: str, found: Sequence[Predicted]) -> Refused:
    over = [p.over for p in found]
    memory, tenth, half = (sum(share > least for share in over) for least in (0.0, 0.1, 0.5))
    return Refused(group, len(found), memory, tenth, half, sum(p.rules_broken for p in found))


def closed_forms() -> tuple[Errors, ...]:
    """Published state and activation bytes of GPT models (Korthikanti et al. 2022), beside what planc's memory of their
    plans is (`gpt_plans`)."""
    found = []
    for asked in bundled("memory.json"):
        value = gpt_plans.compiled_figure(asked) / (2**30 if asked["unit"] == "GiB" else 1)
        error = value / asked["answer"] - 1
        found.append(Errors(asked["id"], 1, abs(error), abs(error), error))
    return tuple(found)


def one_row(p: Predicted) -> Errors:
    return Errors(p.row.id, 1, abs(p.error), abs(p.error), p.error)
