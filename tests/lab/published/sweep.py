"""Analysis of vTrain's single-node sweep: how its times were made, and how well a model could rank its layouts.

Its file is called measured, but its times are composed from traces. Four rows that differ only in layer count and
microbatch count give the seconds of one layer in one microbatch, and all such quadruples of one width,
tensor-parallel size and microbatch size give the same seconds, whatever the layers, microbatches, stages and
data-parallel size. So a layer of each such cell was timed once, in one trace; where the layer is bound by the host,
another trace would have given other seconds. `noise` estimates that spread, and `attainable` the number of groups
that a model with perfect knowledge of everything else would still rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import exp, log
from random import Random
from statistics import fmean, geometric_mean, median

from planc.diag.fast_dataclass import dataclass
from tests.lab.published.predict import Predicted
from tests.lab.published.ranking import rankings
from tests.lab.published.rows import Row, measured_s

Cell = tuple[int, int, int]
"""Width, tensor-parallel size and sequences of a microbatch."""
SAME_WORK = 1.3
"""A layer is host-bound where twice the sequences take less than this factor longer."""
DRAWS = 40
SEED = 1
RANKED = 0.9
"""Spearman correlation from which a group counts as ranked."""


@dataclass(frozen=True)
class Sweep:
    """Consistency of a sweep's rows."""

    cells: int
    """Cells whose layer time the rows determine."""
    quadruples: int
    """Quadruples of rows that determine them."""
    spread: float
    """Largest relative difference between quadruples of one cell."""
    host_bound: int
    """Cells whose layer is bound by the host."""
    noise: float
    """Standard deviation of the logarithm of a host-bound layer's time between traces."""
    groups: int
    attainable: float
    """Groups that stay ranked when the host-bound layers are traced again (mean of DRAWS draws)."""
    with_one_time: int
    """Groups that stay ranked when all host-bound layers take their geometric mean time."""


def studied(rows: Sequence[Row]) -> Sweep:
    """How the times of a sweep's `rows` came about, and how well they can be ranked."""
    found = quadruple_times(rows)
    layer_s = {cell: median(each) for cell, each in found.items()}
    pairs = _pairs(layer_s)
    host_bound = {cell: layer_s[cell] for cell in sorted({cell for pair in pairs for cell in pair})}
    noise = (fmean(log(layer_s[more] / layer_s[cell]) ** 2 for cell, more in pairs) / 2) ** 0.5 if pairs else 0.0
    random = Random(SEED)
    drawn = [
        ranked(rows, {c: s * exp(random.gauss(0.0, noise)) for c, s in host_bound.items()}, host_bound)
        for _ in range(DRAWS)
    ]
    same_s = geometric_mean(host_bound.values()) if host_bound else 0.0
    return Sweep(
        cells=len(layer_s),
        quadruples=sum(map(len, found.values())),
        spread=max((abs(s / layer_s[cell] - 1) for cell, each in found.items() for s in each), default=0.0),
        host_bound=len(host_bound),
        noise=noise,
        groups=ranked(rows, {}, {}),
        attainable=fmean(drawn),
        with_one_time=ranked(rows, dict.fromkeys(host_bound, same_s), host_bound),
    )


def _pairs(layer_s: Mapping[Cell, float]) -> list[tuple[Cell, Cell]]:
    """Pairs of cells, one with twice the sequences of the other, whose layer is host-bound."""
    doubled = [((width, tp, n), (width, tp, 2 * n)) for width, tp, n in layer_s]
    return [(one, two) for one, two in doubled if two in layer_s and layer_s[two] < SAME_WORK * layer_s[one]]


def ranked(rows: Sequence[Row], layer_s: Mapping[Cell, float], was_s: Mapping[Cell, float]) -> int:
    """Number of groups that the rows' own times rank when layers take `layer_s` instead of `was_s` seconds."""
    again = [Predicted(row, _with_layers(row, layer_s, was_s), measured_s(row), 0.0) for row in rows]
    return sum(r.spearman >= RANKED for r in rankings(again))


def _with_layers(row: Row, layer_s: Mapping[Cell, float], was_s: Mapping[Cell, float]) -> float:
    """A row's step time with other layer times: each microbatch and each further stage adds one stage's difference."""
    cell = _cell(row)
    if cell not in layer_s:
        return measured_s(row)
    layers, stages, microbatches = _counts(row)
    return measured_s(row) + (microbatches + stages - 1) * layers / stages * (layer_s[cell] - was_s[cell])


def quadruple_times(rows: Sequence[Row]) -> dict[Cell, list[float]]:
    """Layer seconds in one microbatch by cell, one for every four of `rows` with two depths and two microbatch counts.

    A step takes a + b n + c L + s n L / stages for n microbatches and L layers: what comes once a step, once a
    microbatch and once a layer goes out of the difference of the differences, and s is left.
    """
    series: dict[tuple[Cell, int, int], dict[tuple[int, int], float]] = {}
    for row in rows:
        layers, stages, microbatches = _counts(row)
        same_layout = series.setdefault((_cell(row), stages, int(row.facts["parallel"]["dp"])), {})
        same_layout[layers, microbatches] = measured_s(row)
    found: dict[Cell, list[float]] = {}
    for (cell, stages, _), times in series.items():
        for less, more, few, many in _pairs_of_counts(times):
            both = times[more, many] - times[more, few] - times[less, many] + times[less, few]
            found.setdefault(cell, []).append(stages * both / ((more - less) * (many - few)))
    return found


def _pairs_of_counts(times: Mapping[tuple[int, int], float]) -> Iterator[tuple[int, int, int, int]]:
    """Every two layer counts and two microbatch counts of which all four rows exist."""
    layers, microbatches = (sorted({key[i] for key in times}) for i in (0, 1))
    for less, more in combinations(layers, 2):
        for few, many in combinations(microbatches, 2):
            if {(less, few), (less, many), (more, few), (more, many)} <= times.keys():
                yield less, more, few, many


def _cell(row: Row) -> Cell:
    return int(row.model["d_model"]), int(row.facts["parallel"]["tp"]), int(row.facts["batch"]["micro_batch_seqs"])


def _counts(row: Row) -> tuple[int, int, int]:
    """Layers, stages and microbatches of a row."""
    parallel = row.facts["parallel"]
    microbatches = row.sequences // int(parallel["dp"]) // int(row.facts["batch"]["micro_batch_seqs"])
    return int(row.model["layers"]), int(parallel["pp"]), microbatches
