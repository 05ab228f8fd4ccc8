"""Layouts with experts traced under an even router: what moves is what was predicted, dropless or not."""

from __future__ import annotations

import pytest

from planc.backends.cuda.audit import run as auditing
from planc.ir.audit import AuditOptions, differences
from tests.cuda.moe_cases import moe_case

MORE = {"ep_fsdp": ("recompute blocks except matmul", "optimizer muon")}
"""A replay sends rows to their experts again, whose products it keeps; Muon gathers updates."""


@pytest.mark.launch
@pytest.mark.parametrize("name", ["moe_fsdp", "ep_fsdp", "capacity"])
def test_a_layout_with_experts_moves_what_was_predicted(name: str) -> None:
    found = auditing.audit(moe_case(name, *MORE.get(name, ())), AuditOptions())
    assert differences(found.rows) == [] and found.unparsed == ()
    moved = {row.op for row in found.rows if row.observed.count}
    assert ("all_to_all" in moved) == (name != "moe_fsdp")
