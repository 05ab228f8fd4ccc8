"""What the xla target refuses: with a code, at the sentence."""

from __future__ import annotations

import pytest

from planc.backends.xla.lower import lower, refusals
from planc.diag import PlanError
from planc.sharding import propagate
from tests.xla.cases import FSDP, FSDP_TP, plan_of, sharded


def test_a_layout_of_this_target_is_not_refused() -> None:
    assert refusals(sharded("fsdp_tp_sp")) == []
    assert lower(sharded("fsdp_tp_sp")).target == "xla"


def test_a_pipeline_is_refused_by_its_sentence() -> None:
    of = propagate(plan_of("pipe", "pp 2 > fsdp 2", FSDP, "split layers over pp as 1f1b"))
    (found,) = refusals(of)
    assert found.code == "E0901"
    assert "split layers over pp as 1f1b" in found.message
    assert found.span.line == of.plan.split.cause.span.line  # type: ignore[union-attr]
    with pytest.raises(PlanError):
        lower(of)


def test_uneven_parts_are_refused_with_the_numbers() -> None:
    of = propagate(plan_of("uneven", "fsdp 2 > tp 4", FSDP, "shard ffn over tp"))
    (found,) = refusals(of)
    assert found.code == "E0901" and "182 is no multiple of 4" in found.message


def test_other_dtypes_of_state_are_refused() -> None:
    of = propagate(plan_of("narrow", *FSDP_TP, "store optimizer as bf16"))
    assert [f.code for f in refusals(of)] == ["E0901"]
    assert "bf16" in refusals(of)[0].message
