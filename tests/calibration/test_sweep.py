"""The single-node sweep: its times are sums of one layer's, and what another trace would do to their order."""

import math
from itertools import product
from random import Random

import pytest

from tests.lab.published.predict import Predicted
from tests.lab.published.ranking import rankings
from tests.lab.published.rows import Row, measured_s, sweep_rows
from tests.lab.published.sweep import quadruple_times, ranked, studied


def as_it_is(row: Row) -> Predicted:
    return Predicted(row, measured_s(row), measured_s(row), 0.0)


LAYER_S = {1: 3e-3, 2: 3.2e-3, 4: 6e-3}


def made(layers: int, sequences: int, dp: int, pp: int, microbatches: int, disturbed: float = 1.0) -> Row:
    """A row that is put together: LAYER_S for each layer and microbatch, and something once each, and once a step."""
    once = 1e-3 + 4e-4 * layers + 5e-3 * microbatches
    seconds = once + (microbatches + pp - 1) * layers / pp * LAYER_S[sequences]
    return Row(
        {
            "id": "made",
            "source": "a/b c",
            "hardware": {"n_devices": dp * pp},
            "model": {"layers": layers, "d_model": 512},
            "parallel": {"tp": 1, "dp": dp, "pp": pp},
            "batch": {"global_batch_seqs": dp * sequences * microbatches, "micro_batch_seqs": sequences, "seq": 8},
            "measured": {"iter_time_s": seconds * disturbed},
        }
    )


MADE = [made(*sizes) for sizes in product((8, 16), (1, 2, 4), (1, 2), (1, 2, 4), (4, 8))]


def test_a_layers_seconds_are_found() -> None:
    """Whatever comes once a step, a microbatch or a layer goes out; stages share the layers."""
    found = quadruple_times(MADE)
    assert {cell[2]: len(each) for cell, each in found.items()} == {1: 6, 2: 6, 4: 6}
    for (_, _, sequences), each in found.items():
        assert each == pytest.approx([LAYER_S[sequences]] * 6)


def test_the_sweep_is_composed_from_traces() -> None:
    """Runs that were measured differ from each other; those of the sweep do so by their last digit alone."""
    found = studied(sweep_rows())
    assert found.quadruples > 100 and found.spread < 2e-4
    random = Random(0)
    measured = [
        Row({**r.facts, "measured": {"iter_time_s": measured_s(r) * random.gauss(1, 0.003)}}) for r in sweep_rows()
    ]
    assert studied(measured).spread > 0.05


def test_layers_that_wait_are_those_that_more_work_does_not_slow() -> None:
    """1 and 2 sequences take nearly the same, 4 nearly twice as long; the noise is what 1 and 2 differ by."""
    found = studied(MADE)
    assert (found.cells, found.host_bound) == (3, 2)
    assert found.noise == pytest.approx(math.log(3.2 / 3) / 2**0.5)


def test_the_same_layers_are_ranked_as_they_are() -> None:
    rows = sweep_rows()
    layer_s = {cell: each[0] for cell, each in quadruple_times(rows).items()}
    every = len(rankings([*map(as_it_is, rows)]))
    assert ranked(rows, layer_s, layer_s) == ranked(rows, {}, {}) == every
    assert ranked(rows, {cell: s * (1 + i % 2) for i, (cell, s) in enumerate(layer_s.items())}, layer_s) < every / 2


def test_less_is_attainable_than_all() -> None:
    """And no less with a new trace than with one time for all waiting layers."""
    found = studied(sweep_rows())
    assert found.with_one_time < found.attainable < found.groups
