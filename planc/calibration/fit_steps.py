"""Fit a hardware file's numbers to measured training steps of a few plans: `planc calibrate --from`.

The file's current numbers are the priors, so eight runs are enough: a number that no run determines stays unchanged.
The solver is that of `fit.py`: Gauss-Newton on logarithms, with a Huber loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, isclose
from typing import TYPE_CHECKING, Any

from planc.calibration.fit import SIGMA, STEP, rounded, shown, solved
from planc.calibration.fit_machine import Calibrated
from planc.calibration.parameters import NARROW, Parameter, Place
from planc.calibration.probes import predicted_seconds
from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planc.calibration.probes import MeasuredStep

    Array = NDArray[Any]

ONE_MACHINE = 0.04
"""Expected relative error of the model on runs of one machine with one release of a framework."""
EQUAL = 5e-3
"""Relative error below which a step equals its prediction: `planc check` prints three digits."""
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
"""Parameters that whole steps can determine. A number that is 0 in the file, or that affects no run, is not fitted."""


@dataclass(frozen=True, kw_only=True)
class FromSteps:
    """The result of a fit to training steps, and the seconds predicted for each step before the fit."""

    found: Calibrated
    before_s: tuple[float, ...]

    def errors(self) -> tuple[tuple[float, float], ...]:
        """Return each step's relative error (predicted over measured seconds, minus one) before and after the fit."""
        steps = self.found.steps
        rows = zip(steps, self.before_s, predicted_seconds(steps, self.found.cluster), strict=True)
        return tuple((before / s.seconds - 1, after / s.seconds - 1) for s, before, after in rows)

    def changed(self) -> Calibrated:
        """Return the result with only the parameters whose text in the hardware file (three digits) changes."""
        pairs = zip(self.found.parameters, self.found.values, strict=True)
        moved = [(p, v) for p, v in pairs if not isclose(v, p.prior)]  # it went through a logarithm, which may round
        kept = [(p, v) for p, v in moved if shown(p, rounded(v)) != shown(p, rounded(p.prior))]
        return replace(self.found, parameters=tuple(p for p, _ in kept), values=tuple(v for _, v in kept))


def calibrate_from(cluster: Cluster, steps: Sequence[MeasuredStep]) -> FromSteps:
    """Fit the hardware numbers of `cluster` to the measured seconds of `steps`, all run on the chip of `cluster`.

    Raises ValueError if `steps` is empty.
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
    return predicted_seconds(steps, _put(cluster, parameters, x))


def _slopes(
    cluster: Cluster, steps: Sequence[MeasuredStep], parameters: Sequence[Parameter], x: Array, base: Array
) -> Array:
    """Return the derivatives of the logarithms of step times with respect to those of the parameters."""
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
