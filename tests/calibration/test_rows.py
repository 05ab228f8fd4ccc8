"""Published runs as facts and as plans: none is dropped but by the stated rules, each has one meaning."""

from collections import Counter

import pytest

from planc.calibration.plans import layout_of, plan_of, plan_text, slice_shape
from planc.calibration.rows import Row, counted_flops_per_token, measured_s, missing, sweep_rows, training_rows

COUNTED = [row for row in training_rows() if not missing(row)]
OF_EACH = list({(row.publisher, row.chip, row.moe): row for row in COUNTED}.values())


def test_no_row_is_dropped_but_by_a_rule() -> None:
    why = Counter(missing(row) for row in training_rows())
    assert why == {"": 327, "no dims": 30, "no layout": 2, "recomputation unknown": 35, "regressed kernel": 1}
    assert len(sweep_rows()) == 757


@pytest.mark.parametrize("row", OF_EACH, ids=lambda r: r.id)
def test_a_row_is_a_plan(row: Row) -> None:
    """The plan's devices, tokens and parameters are the row's."""
    plan = plan_of(row)
    per_chip = plan.cluster.chip.devices
    assert plan.mesh.devices == row.devices * per_chip == layout_of(row).devices
    assert (plan.batch.sequences, plan.batch.sequence_tokens) == (row.sequences, row.sequence)
    published = row.model.get("params")
    if published:
        assert plan.model.parameters == pytest.approx(published, rel=0.13)


def test_every_row_is_a_plan() -> None:
    assert {plan_of(row).mesh.devices > 0 for row in COUNTED} == {True}


def test_a_step_time_is_used_as_it_is_printed() -> None:
    row = next(r for r in COUNTED if r.id == "korthikanti-175B-selective+sp")
    assert measured_s(row) == 13.75
    assert "recompute attention.core\n" in plan_text(row) and "interleaved_1f1b(chunks = 3)" in plan_text(row)


def test_flops_are_counted_as_the_source_counts_them() -> None:
    """Megatron-Bridge counts causal attention: its tokens/s and TFLOP/s agree for an unrounded release."""
    row = next(r for r in COUNTED if "(26.06 " in r.source and "LLAMA3.1_405B-GB300" in r.id)
    measured = row.facts["measured"]
    rate = counted_flops_per_token(row) * measured["tokens_per_s_per_device"] / 1e12
    assert rate == pytest.approx(measured["tflops_per_device"], rel=0.01)


def test_a_slice_is_as_even_as_it_goes() -> None:
    assert slice_shape(256, 2) == (16, 16) and slice_shape(128, 3) == (4, 4, 8) and slice_shape(2048, 3) == (8, 16, 16)
