"""What the single-node sweep is, and how well its layouts can be ranked.

The file that it comes from is called measured; its times are put together. Rows that differ in layers and in
microbatches alone give the seconds of one layer in one microbatch, and every four such rows of one width,
tensor-parallel size and microbatch give the same seconds, whatever the layers, microbatches, stages and data-parallel
ways. So a layer of each of these cells was timed once, in one trace, and where it waits for the host another trace
would have had other seconds. `noise` says by how much, `attainable` how many groups of layouts a model would still rank
that knows all else to the digit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import exp, log
from random import Random
from statistics import fmean, geometric_mean, median

from planc.calibration.predict import Predicted
from planc.calibration.ranking import rankings
from planc.calibration.rows import Row, measured_s
from planc.diag.fast_dataclass import dataclass

Cell = tuple[int, int, int]
"""Width, tensor-parallel size and sequences of a microbatch."""
SAME_WORK = 1.3
"""A layer waits for the host where twice the sequences take less than so many times as long."""
DRAWS = 40
SEED = 1
RANKED = 0.9
"""Spearman's correlation of a group that counts as ranked."""


@dataclass(frozen=True)
class Sweep:
    """What the rows of a sweep say about themselves."""

    cells: int
    """Layers of which the rows give the seconds in one microbatch."""
    fours: int
    """Fours of rows that give them."""
    spread: float
    """The most that a four differs from the others of its cell, as a share."""
    waiting: int
    """Cells whose layer waits for the host."""
    noise: float
    """Of the seconds of such a layer from one trace to the next: standard deviation of their logarithm."""
    groups: int
    attainable: float
    """Groups that stay ranked when the waiting layers are traced again (mean of DRAWS)."""
    alike: int
    """Groups that stay ranked when all waiting layers take the same time, their geometric mean."""


def studied(rows: Sequence[Row]) -> Sweep:
    """What these rows say about themselves."""
    found = fours(rows)
    layer_s = {cell: median(each) for cell, each in found.items()}
    pairs = _pairs(layer_s)
    waiting = {cell: layer_s[cell] for cell in sorted({cell for pair in pairs for cell in pair})}
    noise = (fmean(log(layer_s[more] / layer_s[cell]) ** 2 for cell, more in pairs) / 2) ** 0.5 if pairs else 0.0
    random = Random(SEED)
    drawn = [
        ranked(rows, {c: s * exp(random.gauss(0.0, noise)) for c, s in waiting.items()}, waiting) for _ in range(DRAWS)
    ]
    same_s = geometric_mean(waiting.values()) if waiting else 0.0
    return Sweep(
        cells=len(layer_s),
        fours=sum(map(len, found.values())),
        spread=max((abs(s / layer_s[cell] - 1) for cell, each in found.items() for s in each), default=0.0),
        waiting=len(waiting),
        noise=noise,
        groups=ranked(rows, {}, {}),
        attainable=fmean(drawn),
        alike=ranked(rows, dict.fromkeys(waiting, same_s), waiting),
    )


def _pairs(layer_s: Mapping[Cell, float]) -> list[tuple[Cell, Cell]]:
    """Cells with those of twice the sequences, where the host's work, the same for both, is all that takes time."""
    doubled = [((width, tp, n), (width, tp, 2 * n)) for width, tp, n in layer_s]
    return [(one, two) for one, two in doubled if two in layer_s and layer_s[two] < SAME_WORK * layer_s[one]]


def ranked(rows: Sequence[Row], layer_s: Mapping[Cell, float], was_s: Mapping[Cell, float]) -> int:
    """Groups of layouts that the rows' own times rank, when layers take other seconds than they did."""
    again = [Predicted(row, _with_layers(row, layer_s, was_s), measured_s(row), 0.0) for row in rows]
    return sum(r.spearman >= RANKED for r in rankings(again))


def _with_layers(row: Row, layer_s: Mapping[Cell, float], was_s: Mapping[Cell, float]) -> float:
    """A row's seconds with other seconds of its layers: a stage's, for every microbatch and once more a stage."""
    cell = _cell(row)
    if cell not in layer_s:
        return measured_s(row)
    layers, stages, microbatches = _counts(row)
    return measured_s(row) + (microbatches + stages - 1) * layers / stages * (layer_s[cell] - was_s[cell])


def fours(rows: Sequence[Row]) -> dict[Cell, list[float]]:
    """By cell, a layer's seconds in one microbatch from every four rows with two depths and two microbatch counts.

    A step takes a + b n + c L + s n L / stages for n microbatches and L layers: what comes once a step, once a
    microbatch and once a layer goes out of the difference of the differences, and s is left.
    """
    alike: dict[tuple[Cell, int, int], dict[tuple[int, int], float]] = {}
    for row in rows:
        layers, stages, microbatches = _counts(row)
        alike.setdefault((_cell(row), stages, int(row.facts["parallel"]["dp"])), {})[layers, microbatches] = measured_s(
            row
        )
    found: dict[Cell, list[float]] = {}
    for (cell, stages, _), times in alike.items():
        for less, more, few, many in _corners(times):
            both = times[more, many] - times[more, few] - times[less, many] + times[less, few]
            found.setdefault(cell, []).append(stages * both / ((more - less) * (many - few)))
    return found


def _corners(times: Mapping[tuple[int, int], float]) -> Iterator[tuple[int, int, int, int]]:
    """Two numbers of layers and two of microbatches that are there all four."""
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
