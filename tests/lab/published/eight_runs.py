"""How far eight measured runs of a machine go: `planc calibrate --from` on published runs, judged by the others.

A machine is a chip with all runs of one publisher. Before, it has the numbers that were fitted without that publisher;
after, those of eight of its runs, spread evenly over the list; errors are of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from planc.calibration.fit_steps import calibrate_from
from planc.calibration.probes import MeasuredStep
from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster
from tests.lab.published.predict import Prepared

RUNS = 8
MIN_RUNS = 16
"""Machines with fewer runs are left out: as many are judged as are fitted."""


@dataclass(frozen=True)
class EightRuns:
    """Sizes of the errors of the `runs` of a machine that took no part, before and after: median and 90th
    percentile."""

    group: str
    runs: int
    before: float
    before_p90: float
    after: float
    after_p90: float


def eight_runs(
    runs: Iterable[Prepared], unseen: Callable[[str], Callable[[Cluster], Cluster]]
) -> tuple[EightRuns, ...]:
    """All machines with enough of the prepared `runs` together, then each; none where there is no such machine.

    `unseen` gives the change of a cluster to the numbers that were fitted without a publisher.
    """
    machines: dict[tuple[str, str], list[Prepared]] = {}
    for run in runs:
        machines.setdefault((run.row.publisher, run.row.chip), []).append(run)
    before: list[float] = []
    after: list[float] = []
    found = []
    for (publisher, chip), mine in machines.items():
        if len(mine) >= MIN_RUNS:
            errors = _errors(mine, unseen(publisher)(mine[0].sharded.plan.cluster))
            found.append(_figures(f"{publisher}, {chip}", *errors))
            before += errors[0]
            after += errors[1]
    return (_figures("all", before, after), *found) if found else ()


def _errors(runs: Sequence[Prepared], declared: Cluster) -> tuple[list[float], list[float]]:
    """Sizes of the errors of the runs that are not among the eight, before and after."""
    steps = [MeasuredStep(name=r.row.id, sharded=r.sharded, rows=r.collectives, seconds=r.measured_s) for r in runs]
    chosen = {round(i * (len(steps) - 1) / (RUNS - 1)) for i in range(RUNS)}
    fitted = calibrate_from(declared, [steps[i] for i in sorted(chosen)]).found.cluster
    rest = [step for i, step in enumerate(steps) if i not in chosen]
    return _sizes(rest, declared), _sizes(rest, fitted)


def _sizes(steps: Sequence[MeasuredStep], cluster: Cluster) -> list[float]:
    return [abs(step.predicted_s(cluster) / step.seconds - 1) for step in steps]


def _figures(group: str, before: Sequence[float], after: Sequence[float]) -> EightRuns:
    return EightRuns(group, len(after), median(before), _p90(before), median(after), _p90(after))


def _p90(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.9 * len(values)))]
