"""The fit of the bundled hardware files: the most likely values of `PARAMETERS` under published runs and priors.

Leaving a publisher out is one more step from the full fit with its rows removed: near it, logarithms of times are as
good as linear.

`python -m tests.lab.published.fit` does it (minutes) and writes `data/fitted.json` and `plans/hardware`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.calibration.fit import STEP, rounded, shown, solved, with_field
from planc.diag.fast_dataclass import dataclass
from tests.lab.published.parameters import PARAMETERS, with_values
from tests.lab.published.plans import unusable
from tests.lab.published.predict import Prepared, prepare
from tests.lab.published.rows import sweep_rows, training_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SWEEP_EVERY, SWEEP_WEIGHT = 13, 0.5
"""Runs of the single-node sweep are alike: every so many is used, each for so much of a row."""


@dataclass(frozen=True)
class Fit:
    """Values in the order of `PARAMETERS`, and the same without the rows of each publisher."""

    values: tuple[float, ...]
    without: dict[str, tuple[float, ...]]

    def largest_shift(self, parameter: int) -> tuple[float, str]:
        """The largest relative change (ratio less one) of a parameter when a publisher is left out, and that publisher.

        `parameter` is its index in `PARAMETERS`.
        """
        kept = self.values[parameter]
        return max((abs(v[parameter] / kept - 1), name) for name, v in self.without.items())


def fit(iterations: int = 6, start: Sequence[float] = ()) -> Fit:
    """Fit `PARAMETERS` on all bundled rows, with all publishers and without each. Takes minutes.

    `iterations` of Gauss and Newton are made from the values `start`, or from the priors when there are none.
    """
    import numpy as np

    rows = [r for r in training_rows() if not unusable(r)]
    runs = [prepare(r) for r in (*rows, *sweep_rows()[::SWEEP_EVERY])]
    weights = np.array([1.0] * len(rows) + [SWEEP_WEIGHT] * (len(runs) - len(rows)))
    x = np.log(np.array(start or [p.prior for p in PARAMETERS]))
    for _ in range(iterations):
        at, errors, slopes = x, *linear(runs, x)
        x = solved(at, errors, slopes, weights, PARAMETERS)
        print(f"median error {np.median(abs(errors)):.3f}, 90th percentile {np.quantile(abs(errors), 0.9):.3f}")
    without = {}
    for publisher in dict.fromkeys(r.publisher for r in rows):
        kept = np.array([p.row.publisher != publisher for p in runs])
        left_out = solved(at, errors[kept], slopes[kept], weights[kept], PARAMETERS)
        without[publisher] = tuple(float(v) for v in np.exp(left_out))
    return Fit(tuple(float(v) for v in np.exp(x)), without)


def linear(runs: Sequence[Prepared], x: Array) -> tuple[Array, Array]:
    """Errors of the runs at `x`, and their derivatives by each parameter's logarithm."""
    import numpy as np

    values = np.exp(x)
    base = np.array([log(seconds(run, values)) for run in runs])
    slopes = np.zeros((len(runs), len(x)))
    for j, parameter in enumerate(PARAMETERS):
        more = values.copy()
        more[j] *= exp(STEP)
        for i, run in enumerate(runs):
            if run.sharded.plan.cluster.chip.name in parameter.chips:
                slopes[i, j] = (log(seconds(run, more)) - base[i]) / STEP
    return base - np.log([run.measured_s for run in runs]), slopes


def seconds(run: Prepared, values: Iterable[float]) -> float:
    """Step time in seconds of a prepared row with `values` for the parameters, in the order of `PARAMETERS`."""
    return run.step_s(lambda cluster: with_values(cluster, [float(v) for v in values]))


def write(found: Fit, root: Path) -> None:
    """The values into `data/fitted.json` and the hardware files under `root`."""
    facts = {
        "parameters": [p.name for p in PARAMETERS],
        "values": [rounded(v) for v in found.values],
        "without": {name: [float(f"{v:.5g}") for v in values] for name, values in found.without.items()},
    }
    (root / "tests/lab/published/data/fitted.json").write_text(json.dumps(facts, indent=1) + "\n")
    for path in sorted((root / "plans/hardware").glob("*.plan")):
        text = path.read_text()
        for parameter, value in zip(PARAMETERS, found.values, strict=True):
            text = with_field(text, parameter, shown(parameter, value))
        path.write_text(text)


if __name__ == "__main__":
    result = fit()
    for index, (one, best) in enumerate(zip(PARAMETERS, result.values, strict=True)):
        move, publisher = result.largest_shift(index)
        print(f"{one.name:28} {shown(one, best):>10} ({shown(one, one.prior)})  {move:5.1%} without {publisher}")
    write(result, Path(__file__).resolve().parents[3])
