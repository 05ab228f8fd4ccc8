"""The fit: the most likely values of `PARAMETERS` under the published runs and the priors.

Errors are logarithms of predicted over measured seconds; large ones count linearly (Huber 1964), so that a
run that misses for other reasons pulls little. Gauss-Newton on the logarithms of the parameters, with the
costs of whole plans, each step's derivatives by differences. Leaving a publisher out is one more step from
the full fit with its rows removed: near it, logarithms of times are as good as linear.

`python -m planc.calibration.fit` does it (minutes) and writes `data/fitted.json` and `plans/hardware`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.calibration.parameters import PARAMETERS, Parameter, with_values
from planc.calibration.plans import unusable
from planc.calibration.predict import Prepared, prepare
from planc.calibration.rows import sweep_rows, training_rows
from planc.diag.fast_dataclass import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SIGMA = 0.08
"""Relative error of a good model on one run; beside the priors' spreads it sets the weight of a row."""
HUBER = 0.08
"""Errors beyond it count linearly."""
SWEEP_EVERY, SWEEP_WEIGHT = 13, 0.5
"""Runs of the single-node sweep are alike: every so many is used, each for so much of a row."""
STEP = 0.05
"""Step of a parameter's logarithm for numerical derivatives."""


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
        x = solved(at, errors, slopes, weights)
        print(f"median error {np.median(abs(errors)):.3f}, 90th percentile {np.quantile(abs(errors), 0.9):.3f}")
    without = {}
    for publisher in dict.fromkeys(r.publisher for r in rows):
        kept = np.array([p.row.publisher != publisher for p in runs])
        left_out = solved(at, errors[kept], slopes[kept], weights[kept])
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


def solved(
    x: Array, errors: Array, slopes: Array, weights: Array, parameters: Sequence[Parameter] = PARAMETERS
) -> Array:
    """The best parameters for these errors and slopes, within the bounds."""
    import numpy as np

    prior = np.log([p.prior for p in parameters])
    spread = np.array([p.spread for p in parameters])
    move = np.zeros_like(x)
    for _ in range(30):
        size = np.abs(errors + slopes @ move)
        each = weights * np.minimum(1.0, HUBER / np.maximum(size, 1e-9)) / SIGMA**2
        left = slopes.T @ (each[:, None] * slopes) + np.diag(1 / spread**2)
        right = -slopes.T @ (each * errors) - (x - prior) / spread**2
        move = np.linalg.solve(left, right)
    low, high = np.log([p.low for p in parameters]), np.log([p.high for p in parameters])
    return np.asarray(np.clip(x + np.clip(move, -0.7, 0.7), low, high))


# What it writes.


def rounded(value: float) -> float:
    """`value`, in any unit, with three significant digits, as hardware files have it."""
    return float(f"{value:.3g}")


def plain(value: float) -> str:
    """`value`, in any unit, with three significant digits and no exponent, which the language does not read."""
    return f"{Decimal(f'{value:.3g}'):f}"


def shown(parameter: Parameter, value: float) -> str:
    """`value` of `parameter` with a unit of the language, three digits."""
    if parameter.unit.startswith("share"):
        return f"{plain(100 * value)} %"
    if parameter.unit == "s":
        return f"{plain(1e6 * value)} us" if value < 1e-3 else f"{plain(1e3 * value)} ms"
    return f"{round(value / 2**10)} KiB" if parameter.unit == "B" else f"{round(value)}"


def write(found: Fit, root: Path) -> None:
    """The values into `data/fitted.json` and the hardware files under `root`."""
    facts = {
        "parameters": [p.name for p in PARAMETERS],
        "values": [rounded(v) for v in found.values],
        "without": {name: [float(f"{v:.5g}") for v in values] for name, values in found.without.items()},
    }
    (root / "planc/calibration/data/fitted.json").write_text(json.dumps(facts, indent=1) + "\n")
    for path in sorted((root / "plans/hardware").glob("*.plan")):
        text = path.read_text()
        for parameter, value in zip(PARAMETERS, found.values, strict=True):
            text = with_field(text, parameter, shown(parameter, value))
        path.write_text(text)


def with_field(text: str, parameter: Parameter, value: str) -> str:
    """The hardware file `text` with one number of the parameter's chips replaced or added; `value` is written with its
    unit."""
    import re

    if not re.search(rf"^chip +({'|'.join(parameter.chips)})\(", text, re.MULTILINE):
        return text
    starts = {"chip": rf"chip +({'|'.join(parameter.chips)})\(", "link": "link ", "network": "network "}
    lines = []
    for line in text.splitlines():
        if re.match(starts[parameter.place], line):
            line = _with_field(line, parameter.field, value)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _with_field(line: str, field: str, value: str) -> str:
    """`field = value` in every bracket of a declaration; added at the end where it is missing."""
    import re

    found, count = re.subn(rf"\b{field} = [\d.]+( ?%| [A-Za-z/]+)?", f"{field} = {value}", line)
    return found if count else re.sub(r"\)$", f", {field} = {value})", line)


if __name__ == "__main__":
    result = fit()
    for index, (one, best) in enumerate(zip(PARAMETERS, result.values, strict=True)):
        move, publisher = result.largest_shift(index)
        print(f"{one.name:28} {shown(one, best):>10} ({shown(one, one.prior)})  {move:5.1%} without {publisher}")
    write(result, Path(__file__).resolve().parents[2])
