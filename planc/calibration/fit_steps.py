"""A hardware file's numbers from measured training steps of a few plans alone: `planc calibrate --from`.

Priors are the numbers that the file has, so that eight runs are enough: what they do not tell stays. The fit is that of
the published runs (`fit.py`): Gauss-Newton on logarithms, errors beyond 8 % counted linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, isclose
from typing import TYPE_CHECKING, Any

from planc.calibration.fit import SIGMA, STEP, rounded, shown, solved
from planc.calibration.fit_machine import Calibrated
from planc.calibration.parameters import NARROW, Parameter, Place
from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planc.calibration.probes import MeasuredStep

    Array = NDArray[Any]

ONE_MACHINE = 0.04
"""Relative error of a good model on runs of one machine, to which a framework and its release belong."""
EQUAL = 5e-3
"""Relative error below which a step is the predicted one: `planc check` prints three digits."""
ITERATIONS = 4
FIELDS: tuple[tuple[str, str, float, float, float, Place], ...] = (
    # field, unit, spread of the prior's logarithm, bounds, where it stands
    ("matmul_efficiency", "share", 0.15, 0.02, 0.95, "chip"),
    *((f"{dtype}_efficiency", "share", 0.15, 0.02, 0.95, "chip") for dtype in NARROW),
    ("attention_efficiency", "share", 0.2, 0.002, 0.95, "chip"),
    ("memory_efficiency", "share", 0.15, 0.02, 0.95, "chip"),
    ("matmul_depth", "steps", 0.2, 1.0, 4096.0, "chip"),
    ("matmul_tail", "share", 0.2, 0.01, 1.0, "chip"),
    ("contention", "share", 0.2, 0.01, 1.0, "chip"),
    ("launch", "s", 0.2, 1e-7, 1e-2, "chip"),
    ("dispatch", "s", 0.3, 1e-7, 1e-2, "chip"),
    ("step", "s", 0.5, 1e-5, 10.0, "chip"),
    ("efficiency", "share", 0.15, 0.02, 1.0, "link"),
    ("half_size", "B", 0.3, 1.0, 2.0**30, "link"),
    ("efficiency", "share", 0.15, 0.02, 1.0, "network"),
    ("half_size", "B", 0.3, 1.0, 2.0**30, "network"),
)
"""Numbers that whole steps tell something about. One that is 0 in the file, or that no run depends on, stays."""


@dataclass(frozen=True, kw_only=True)
class FromSteps:
    """A fitted machine, with the seconds of its steps on the machine as it was declared."""

    found: Calibrated
    before_s: tuple[float, ...]

    def errors(self) -> tuple[tuple[float, float], ...]:
        """Errors of each step before and after the fit: predicted over measured, less one."""
        pairs = zip(self.found.steps, self.before_s, strict=True)
        return tuple((s / one.seconds - 1, one.predicted_s(self.found.cluster) / one.seconds - 1) for one, s in pairs)

    def changed(self) -> Calibrated:
        """The machine with those numbers alone that are others than before, as a hardware file writes them."""
        pairs = zip(self.found.parameters, self.found.values, strict=True)
        moved = [(p, v) for p, v in pairs if not isclose(v, p.prior)]  # it went through a logarithm, which may round
        kept = [(p, v) for p, v in moved if shown(p, rounded(v)) != shown(p, rounded(p.prior))]
        return replace(self.found, parameters=tuple(p for p, _ in kept), values=tuple(v for _, v in kept))


def calibrate_from(cluster: Cluster, steps: Sequence[MeasuredStep]) -> FromSteps:
    """The numbers of `cluster`, as it was declared, by the seconds of `steps`, which ran on machines of its chip.

    Raises ValueError for no steps.
    """
    import numpy as np

    if not steps:
        raise ValueError("no steps")
    parameters = _parameters(cluster)
    x = np.log([p.prior for p in parameters])
    measured = np.log([s.seconds for s in steps])
    weights = np.full(len(steps), (SIGMA / ONE_MACHINE) ** 2)
    before = _seconds(cluster, steps, parameters, x)
    best, least = x, inf
    for _ in range(ITERATIONS):
        base = np.log(_seconds(cluster, steps, parameters, x))
        if (total := float(np.abs(base - measured).sum())) < least:
            best, least = x, total
        off = np.where(np.abs(base - measured) < EQUAL, 0.0, base - measured)
        x = solved(x, off, _slopes(cluster, steps, parameters, x, base), weights, parameters)
    if float(np.abs(np.log(_seconds(cluster, steps, parameters, x)) - measured).sum()) < least:
        best = x
    values = tuple(float(v) for v in np.exp(best))
    found = Calibrated(
        cluster=_put(cluster, parameters, best), parameters=parameters, values=values, probes=(), steps=tuple(steps)
    )
    return FromSteps(found=found, before_s=tuple(float(s) for s in before))


def _parameters(cluster: Cluster) -> tuple[Parameter, ...]:
    """The numbers of the machine that may move, with what they are now as priors."""
    found = []
    for field, unit, spread, low, high, place in FIELDS:
        if place == "network" and not cluster.levels:
            continue
        narrow = field.removesuffix("_efficiency")
        if narrow in NARROW and narrow not in cluster.chip.narrow_efficiency:
            continue
        one = Parameter(
            name=f"{place} {field}", field=field, chips=(cluster.chip.name,), prior=1.0, why="measured steps",
            unit=unit, low=low, high=high, spread=spread, place=place,
        )  # fmt: skip
        now = cluster.chip.narrow_efficiency[narrow] if narrow in NARROW else one.of(cluster)
        if now > 0:
            found.append(_at(one, now))
    return tuple(found)


def _at(parameter: Parameter, now: float) -> Parameter:
    low, high = min(parameter.low, now), max(parameter.high, now)
    return replace(parameter, prior=now, low=low, high=high)


def _seconds(cluster: Cluster, steps: Sequence[MeasuredStep], parameters: Sequence[Parameter], x: Array) -> list[float]:
    there = _put(cluster, parameters, x)
    return [s.predicted_s(there) for s in steps]


def _slopes(
    cluster: Cluster, steps: Sequence[MeasuredStep], parameters: Sequence[Parameter], x: Array, base: Array
) -> Array:
    """Derivatives of the steps' logarithms by each parameter's."""
    import numpy as np

    slopes = np.zeros((len(steps), len(x)))
    for j in range(len(x)):
        more = x.copy()
        more[j] += STEP
        slopes[:, j] = (np.log(_seconds(cluster, steps, parameters, more)) - base) / STEP
    return slopes


def _put(cluster: Cluster, parameters: Sequence[Parameter], x: Array) -> Cluster:
    for parameter, value in zip(parameters, x, strict=True):
        cluster = parameter.put(cluster, exp(float(value)))
    return cluster
