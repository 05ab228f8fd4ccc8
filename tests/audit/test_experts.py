"""Layouts with experts traced under an even router: what moves is what was predicted, dropless or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planc.backends.cuda.audit import run as auditing
from planc.ir.audit import AuditOptions, differences
from planc.ir.plan import Optimizer
from tests.cuda.moe_cases import moe_case


@pytest.mark.launch
@pytest.mark.parametrize("name", [pytest.param("moe_fsdp", marks=pytest.mark.long), "ep_fsdp", "capacity"])
def test_a_layout_with_experts_moves_what_was_predicted(name: str) -> None:
    """With a replay, which sends rows to their experts again, and Muon, which gathers updates, on one of them."""
    plan = moe_case(name)
    if name == "ep_fsdp":
        plan = replace(moe_case(name, "recompute blocks except attention.core"), optimizer=Optimizer(name="muon"))
    found = auditing.audit(plan, AuditOptions())
    assert differences(found.rows) == [] and found.unparsed == ()
    moved = {row.op for row in found.rows if row.observed.count}
    assert ("all_to_all" in moved) == (name != "moe_fsdp")
