"""A model family and layouts that exist in these tests alone are propagated, lowered and trained as one process.

So nothing between a plan and its program looks at the name of a family, a model or a layout.
"""

from __future__ import annotations

import pytest

from planc.backends.cuda.refusals.plan import refusals
from planc.checks import check_plan
from planc.lowering import lower_plan
from tests.launches import Row, case, tier
from tests.plans import propagated

from .family_cases import FAMILY, IN_CI, family_case

BUDGET = 1e-5
DIVIDED_INSIDE = ["head_dim", "head_dim_stored", "head_dim_sp", "head_dim_rests", "head_dim_pipeline"]


CASES = [case("cuda-4", name, *tier(name, IN_CI, quick=())) for name in FAMILY]


@pytest.mark.parametrize("name", CASES)
def test_trains_as_one_process(name: str, row: Row) -> None:
    assert row["dead"] == [], "a reference gradient is zero: the comparison would prove nothing"
    assert max(row["gradient"]) <= BUDGET, row["where"]
    assert row["loss"] <= BUDGET
    assert row["norm"] <= BUDGET
    assert row["evaluated"] <= BUDGET


@pytest.mark.parametrize("name", CASES)
def test_issues_the_collectives_that_the_rules_predict(name: str, row: Row) -> None:
    assert row["collectives"] == []


@pytest.mark.parametrize("name", FAMILY)
def test_it_is_lowered_without_a_bundled_module(name: str) -> None:
    sharded = propagated(family_case(name))
    assert refusals(sharded) == []
    assert "def apply_tp" in lower_plan(check_plan(sharded.plan), "cuda").text


@pytest.mark.parametrize("name", FAMILY)
def test_the_private_placement_is_used_only_inside_a_dimension(name: str) -> None:
    text = lower_plan(check_plan(family_case(name)), "cuda").text
    assert ("_StridedShard" in text) == (name in DIVIDED_INSIDE)


def test_a_layout_of_ones_own_writes_what_its_sentences_write() -> None:
    """`use lace` and the bundled names give the same styles for the dims that both divide."""
    text = lower_plan(check_plan(family_case("own_layout")), "cuda").text
    assert '"attention.wg": ColwiseParallel()' in text
    assert '"feed_forward.c": ColwiseParallel()' in text
    assert '"norm": SequenceParallel()' in text
