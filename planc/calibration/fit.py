"""Fit parameters to measured runs with priors, and write a hardware file with the fitted values.

Residuals are logarithms of predicted over measured seconds, with a Huber loss (Huber 1964), so that outliers have
little influence. The solver is Gauss-Newton on the logarithms of the parameters, with finite-difference derivatives of
the predicted step times.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from planc.calibration.parameters import Parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SIGMA = 0.08
"""Expected relative error of the model on one run; it sets the weight of a run relative to the priors."""
HUBER = 0.08
"""Threshold of the Huber loss: larger errors count linearly."""
STEP = 0.05
"""Step of a parameter's logarithm for numerical derivatives."""


def solved(x: Array, errors: Array, slopes: Array, weights: Array, parameters: Sequence[Parameter]) -> Array:
    """Return the parameters' logarithms after one damped Gauss-Newton step from `x`, within the parameters' bounds.

    `errors` are the residuals at `x`, `slopes` their derivatives with respect to `x`, `weights` their weights.
    """
    import numpy as np

    prior = np.log([p.prior for p in parameters])
    spread = np.array([p.spread for p in parameters])
    move = np.zeros_like(x)
    for _ in range(30):  # reweighted least squares: the Huber weights depend on the step itself
        size = np.abs(errors + slopes @ move)
        each = weights * np.minimum(1.0, HUBER / np.maximum(size, 1e-9)) / SIGMA**2
        left = slopes.T @ (each[:, None] * slopes) + np.diag(1 / spread**2)
        right = -slopes.T @ (each * errors) - (x - prior) / spread**2
        move = np.linalg.solve(left, right)
    low, high = np.log([p.low for p in parameters]), np.log([p.high for p in parameters])
    return np.asarray(np.clip(x + np.clip(move, -0.7, 0.7), low, high))


def rounded(value: float) -> float:
    """Return `value`, in any unit, rounded to three significant digits: the precision of a hardware file."""
    return float(f"{value:.3g}")


def plain(value: float) -> str:
    """Return `value`, in any unit, as text with three significant digits, without exponent."""
    return f"{Decimal(f'{value:.3g}'):f}"


def shown(parameter: Parameter, value: float) -> str:
    """Return `value` of `parameter` as text for a hardware file, with three digits and a unit, such as `12.5 us`."""
    if parameter.unit.startswith("share"):
        return f"{plain(100 * value)} %"
    if parameter.unit == "s":
        return f"{plain(1e6 * value)} us" if value < 1e-3 else f"{plain(1e3 * value)} ms"
    if parameter.unit == "times":
        return plain(value)
    return f"{round(value / 2**10)} KiB" if parameter.unit == "B" else f"{round(value)}"


def with_field(text: str, parameter: Parameter, value: str) -> str:
    """Return the hardware file `text` with the field of `parameter` set to `value` (with unit); unchanged if the file
    declares none of the parameter's chips."""
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
    """Return the declaration `line` with `field` set to `value`; the field is added if the line has none."""
    import re

    found, count = re.subn(rf"\b{field} = [\d.]+( ?%| [A-Za-z/]+)?", f"{field} = {value}", line)
    return found if count else re.sub(r"\)$", f", {field} = {value})", line)
