"""Fit a hardware file's numbers to microbenchmarks (probes) and a few training steps on one machine: `planc calibrate`.

Peaks and bandwidths of a chip with a data sheet are fixed. A chip without a core count stands for a process on a CPU:
the highest measured rates become its peaks. The solver is that of `fit.py`: Gauss-Newton on logarithms with priors and
a Huber loss. Each kind of probe has the same total weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from typing import TYPE_CHECKING, Any

from planc.calibration.fit import STEP, plain, rounded, shown, solved, with_field
from planc.calibration.machine_tables import table_sentences, with_measured_tables, without_tables
from planc.calibration.parameters import Parameter, Place
from planc.calibration.probes import (
    STREAMED,
    MeasuredProbe,
    MeasuredStep,
    neighbour_group,
    predicted_s,
    predicted_seconds,
)
from planc.costing.machine.collective_time import ring_share
from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

WIDE = 2.0
"""Standard deviation of a prior's logarithm: so wide that only parameters without a probe stay at their prior."""
STEPS_WEIGHT = 12.0
"""Weight of training steps relative to one kind of probe: users ask about steps."""
STARTS: tuple[dict[str, float], ...] = ({}, {"dispatch": 5e-4}, {"dispatch": 3e-4, "call": 6e-3, "step": 5e-2})
"""Initial values other than the priors. The loss has several minima: `dispatch` has no gradient below the kernels'
time, and the overheads of a step, an op and a call can substitute for each other."""
ITERATIONS = 20
TRIED = 4
"""Iterations from each initial point; the best one is continued."""
FAR = 0.2
"""Relative error above which a step is reported as badly fitted."""
MIN_IMPROVEMENT = 2e-3
"""Relative improvement of the loss below which the iteration stops."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The result of a fit: the cluster with its fitted numbers, and the probes and steps that it was fitted to."""

    cluster: Cluster
    parameters: tuple[Parameter, ...]
    values: tuple[float, ...]
    probes: tuple[MeasuredProbe, ...]
    steps: tuple[MeasuredStep, ...]

    def fitted_s(self, probe: MeasuredProbe) -> float:
        """Return the seconds of `probe` by formulas alone: tables of measured rates would return the measurement."""
        return predicted_s(probe.probe, without_tables(self.cluster))

    def error(self, probe: MeasuredProbe) -> float:
        """Return the relative error (a fraction) of the fit for `probe`: predicted over measured seconds, minus one."""
        return self.fitted_s(probe) / probe.seconds - 1

    @property
    def far(self) -> tuple[str, ...]:
        """Names of the steps that the fitted model predicts with a relative error above `FAR`."""
        pairs = zip(self.steps, predicted_seconds(self.steps, self.cluster), strict=True)
        return tuple(s.name for s, predicted_s in pairs if abs(predicted_s / s.seconds - 1) > FAR)


def parameters_of(cluster: Cluster, *, tabled: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters to fit for the machines of `cluster`: at most 12 of the chip and 6 of the network.

    `tabled`: the hardware file will also have tables of measured rates. The highest measured rates are then the peaks,
    so no efficiency may exceed 1.
    """
    chip = cluster.chip

    def one(field: str, prior: float, unit: str, low: float, high: float, place: Place = "chip") -> Parameter:
        why = "measured on the machine"
        return Parameter(
            name=f"{place} {field}", field=field, chips=(chip.name,), prior=prior, why=why, unit=unit,
            low=low, high=high, spread=WIDE, place=place,
        )  # fmt: skip

    net: Place = "network" if cluster.levels and cluster.devices_per_node == 1 else "link"
    link = cluster.levels[0] if net == "network" else cluster.link
    most = 1.0 if chip.cores or tabled else 4.0  # of what was measured to be the best, which no shape may have reached
    shared = () if chip.cores else (one("contention", 0.8, "share", 0.01, 1.0),)  # transfers take the same cores
    return (
        one("matmul_efficiency", chip.matmul_efficiency, "share", 0.02, most),
        one("matmul_depth", max(32.0, chip.matmul_depth), "steps", 1.0, 4096.0),
        one("attention_efficiency", chip.attention_efficiency, "share", 0.002, 0.95),
        one("memory_efficiency", chip.memory_efficiency, "share", 0.02, most),
        one("launch", chip.launch_s, "s", 1e-7, 1e-2),
        one("dispatch", max(2e-5, chip.dispatch_s), "s", 1e-7, 1e-2),
        one("step", max(3e-3, chip.step_s), "s", 1e-5, 10.0),
        *shared,
        one("efficiency", link.efficiency, "share", 0.02, most if net == "network" else 1.0, net),
        one("latency", link.latency_s, "s", 1e-7, 0.1, net),
        one("reduce_scatter_efficiency", 0.8, "share", 0.1, 1.0, net),
        one("all_to_all_efficiency", 0.8, "share", 0.1, 1.0, net),
        one("call", 2e-4, "s", 1e-7, 0.1, net),
        one("half_size", max(2.0**14, link.half_bytes), "B", 1.0, 2.0**30, net),
    )


def calibrate(
    cluster: Cluster,
    measured: Sequence[MeasuredProbe],
    steps: Sequence[MeasuredStep] = (),
    tabled: Sequence[MeasuredProbe] = (),
) -> Calibrated:
    """Fit the hardware numbers of `cluster` to `measured` microbenchmarks and training `steps`.

    `tabled` are microbenchmarks for tables of measured rates by shape. If there are any, the result has such tables,
    the parameters of the formulas are still fitted to `measured`, and the overheads per op and per step are fitted to
    `steps` as predicted with the tables.
    """
    import numpy as np

    base = _peaks(cluster, [*measured, *tabled])
    parameters = parameters_of(base, tabled=bool(tabled))
    put = _putting(base, parameters)
    kept = [*tabled, *(m for m in measured if m.probe.kind in ("stream", "collective"))] if tabled else []
    by_table = with_measured_tables(base, kept) if kept else base
    seconds = np.array([m.seconds for m in measured] + [s.seconds for s in steps])
    weights = np.array(_weights(measured, steps))
    problem = _FitProblem(measured, steps, np.log(seconds), weights, parameters, put, by_table)
    starts = [np.log([begun.get(p.field, p.prior) for p in parameters]) for begun in STARTS]
    x = _fitted(problem, min((_fitted(problem, start, TRIED) for start in starts), key=problem.loss))
    fitted = _with_tables_of(by_table, put(x))
    if not tabled:
        fitted = _with_measured_peaks(fitted, {m.probe.dtype for m in measured if m.probe.kind == "matmul"})
    return Calibrated(
        cluster=fitted,
        parameters=parameters,
        values=tuple(p.of(fitted) for p in parameters),
        probes=tuple(measured),
        steps=tuple(steps),
    )


def _fitted(problem: _FitProblem, x: Array, iterations: int = ITERATIONS) -> Array:
    now = problem.loss(x)
    for _ in range(iterations):
        errors, slopes = problem.linear(x)
        x = problem.better(x, solved(x, errors, slopes, problem.weights, problem.parameters))
        before, now = now, problem.loss(x)
        if now > before * (1 - MIN_IMPROVEMENT):
            break
    return x


def _with_measured_peaks(cluster: Cluster, dtypes: set[str]) -> Cluster:
    """Multiply the efficiencies of matmuls, memory and network into their peaks if the chip has no data sheet."""
    chip, levels = cluster.chip, cluster.levels
    if chip.cores:
        return cluster
    reached = chip.matmul_efficiency
    chip = replace(
        chip,
        flops_per_s={d: rounded(rate * reached) if d in dtypes else rate for d, rate in chip.flops_per_s.items()},
        matmul_efficiency=1.0,
        attention_efficiency=min(chip.attention_efficiency / reached, 1.0),
        memory_bandwidth_bytes_per_s=rounded(chip.memory_bandwidth_bytes_per_s * chip.memory_efficiency),
        memory_efficiency=1.0,
    )
    if cluster.devices_per_node == 1:
        levels = tuple(
            replace(v, bandwidth_bytes_per_s=rounded(v.bandwidth_bytes_per_s * v.efficiency), efficiency=1.0)
            for v in levels
        )
    return replace(cluster, chip=chip, levels=levels)


def _with_tables_of(source: Cluster, cluster: Cluster) -> Cluster:
    levels = tuple(
        replace(mine, tables=theirs.tables) for mine, theirs in zip(cluster.levels, source.levels, strict=True)
    )
    chip, link = replace(cluster.chip, tables=source.chip.tables), replace(cluster.link, tables=source.link.tables)
    return replace(cluster, chip=chip, link=link, levels=levels)


Put = Callable[["Array"], Cluster]


def _putting(base: Cluster, parameters: Sequence[Parameter]) -> Put:
    def put(x: Array) -> Cluster:
        cluster = base
        for parameter, value in zip(parameters, x, strict=True):
            cluster = parameter.put(cluster, min(parameter.high, max(parameter.low, exp(float(value)))))
        return cluster

    return put


@dataclass(frozen=True)
class _FitProblem:
    """A nonlinear fit: measured seconds, their weights, and the model that predicts them."""

    probes: Sequence[MeasuredProbe]
    steps: Sequence[MeasuredStep]
    logs: Array
    """Logarithms of the measured seconds."""
    weights: Array
    parameters: Sequence[Parameter]
    put: Put
    by_table: Cluster
    """The cluster whose tables predict the steps; probes are predicted from curves alone."""

    def at(self, x: Array) -> Array:
        """Return the logarithms of the predicted seconds at `x`."""
        import numpy as np

        cluster = self.put(x)
        sizes = {m.probe.sizes[0] for m in self.probes if m.probe.kind == "collective"}
        groups = {size: neighbour_group(cluster, size) for size in sizes}
        probed = [predicted_s(m.probe, cluster, groups) for m in self.probes]
        tabled = _with_tables_of(self.by_table, cluster)
        return np.log(probed + predicted_seconds(self.steps, tabled))

    def loss(self, x: Array) -> float:
        import numpy as np

        return float((self.weights * np.abs(self.at(x) - self.logs)).sum())

    def linear(self, x: Array) -> tuple[Array, Array]:
        """Return the errors at `x` and their derivatives with respect to the logarithm of each parameter."""
        import numpy as np

        base = self.at(x)
        slopes = np.zeros((len(self.logs), len(x)))
        for j in range(len(x)):
            more = x.copy()
            more[j] += STEP
            slopes[:, j] = (self.at(more) - base) / STEP
        return base - self.logs, slopes

    def better(self, x: Array, wanted: Array) -> Array:
        """Return a point with a smaller loss than `x`, by line search towards the Gauss-Newton point `wanted`, or else
        by coordinate search, because the loss has kinks."""
        now = self.loss(x)
        for share in (1.0, 0.5, 0.25, 0.1):
            there: Array = x + share * (wanted - x)
            if self.loss(there) < now:
                return there
        return self._one_by_one(x, now)

    def _one_by_one(self, x: Array, now: float) -> Array:
        """Change one parameter after the other if that lowers the loss, which is `now` at `x`. Return the new point."""
        best = x
        for j in range(len(x)):
            for move in (0.5, -0.5, 0.1, -0.1, 0.02, -0.02):
                there = best.copy()
                there[j] += move
                if (found := self.loss(there)) < now * (1 - 1e-4):
                    best, now = there, found
                    break
        return best


def _weights(measured: Sequence[MeasuredProbe], steps: Sequence[MeasuredStep]) -> list[float]:
    """Return the weights of probes, then of steps: equal totals per kind of probe, and `STEPS_WEIGHT` times that for
    steps."""
    counts: dict[str, int] = {}
    for m in measured:
        counts[m.probe.kind] = counts.get(m.probe.kind, 0) + 1
    most = max(counts.values(), default=1)
    weights = [most / counts[m.probe.kind] for m in measured]
    return weights + [STEPS_WEIGHT * most / len(steps) for _ in steps]


# Peaks.


def _peaks(cluster: Cluster, measured: Sequence[MeasuredProbe]) -> Cluster:
    """Return `cluster` with the highest measured rates as peaks if its chip has no data sheet."""
    chip, levels = cluster.chip, cluster.levels
    if chip.cores:
        return cluster
    rates: dict[str, float] = {}
    for m in measured:
        if m.probe.kind == "matmul":
            rates[m.probe.dtype] = max(rates.get(m.probe.dtype, 0.0), m.probe.scale / m.seconds)
    flops = {dtype: rounded(rate) for dtype, rate in rates.items() if dtype in chip.flops_per_s}
    streams = [STREAMED * m.probe.scale / m.seconds for m in measured if m.probe.kind == "stream"]
    moves = [
        m.probe.scale * ring_share(m.probe.op, m.probe.sizes[0]) / m.seconds
        for m in measured
        if m.probe.kind == "collective"
    ]
    chip = replace(
        chip,
        flops_per_s={**chip.flops_per_s, **flops},
        memory_bandwidth_bytes_per_s=rounded(max(streams, default=chip.memory_bandwidth_bytes_per_s)),
    )
    if moves and levels and cluster.devices_per_node == 1:
        levels = tuple(replace(level, bandwidth_bytes_per_s=rounded(max(moves))) for level in levels)
    return replace(cluster, chip=chip, levels=levels)


# The hardware file.


def written(text: str, found: Calibrated, note: Sequence[str]) -> str:
    """Return the hardware file `text` with the fitted numbers of `found`. The lines of `note` become comments below the
    first line. Peaks that were not measured are unchanged."""
    chip, kinds = found.cluster.chip, {m.probe.kind for m in found.probes}
    for parameter, value in zip(found.parameters, found.values, strict=True):
        text = with_field(text, parameter, shown(parameter, rounded(value)))
    if not chip.cores:
        for dtype in sorted({m.probe.dtype for m in found.probes if m.probe.kind == "matmul"} & {*chip.flops_per_s}):
            text = with_field(text, _peak(found, dtype), f"{plain(chip.flops_per_s[dtype] / 1e9)} GFLOP/s")
        if "stream" in kinds:
            memory = f"{plain(chip.memory_bandwidth_bytes_per_s / 1e9)} GB/s"
            text = with_field(text, _peak(found, "memory_bandwidth"), memory)
        if "collective" in kinds and found.cluster.levels and found.cluster.devices_per_node == 1:
            text = _with_bandwidth(text, found.cluster.levels[0].bandwidth_bytes_per_s)
    head, *rest = text.splitlines()
    kept = [line for line in rest if not line.startswith(("#", "measured "))]
    kept += table_sentences(found.cluster)
    return "\n".join([head, *(f"# {line}" for line in note), *kept]) + "\n"


def _peak(found: Calibrated, field: str) -> Parameter:
    chip = found.cluster.chip.name
    return Parameter(name=field, field=field, chips=(chip,), prior=1.0, why="the best measured", unit="")


def _with_bandwidth(text: str, bytes_per_s: float) -> str:
    """Return the hardware file `text` with the bandwidth of its `network` declarations (`at N GB/s`) replaced."""
    import re

    said = f"at {plain(bytes_per_s / 1e9)} GB/s"
    lines = [re.sub(r"\bat [\d.]+ \w+/s", said, n) if n.startswith("network ") else n for n in text.splitlines()]
    return "\n".join(lines) + "\n"
