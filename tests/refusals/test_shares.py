"""The share of plans that cuda takes and xla refuses: how a reason is named."""

from __future__ import annotations

from pathlib import Path

from tests.plans import ROOT, written
from tests.refusals.shares import reasons

PIPELINE = """plan example
model     llama3_8b(layers = 8)
batch     64 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      pp {ranks} > fsdp {rest}
use       pp over pp as zbv
use       fsdp over fsdp
compute   fp32
"""


def test_a_reason_is_named_without_the_names_and_numbers_of_its_plan(tmp_path: Path) -> None:
    """Two plans that are refused for one reason count as two of it; a plan that is lowered has none."""
    other = PIPELINE.replace("layers = 8", "layers = 16")
    plans = [PIPELINE.format(ranks=2, rest=4), other.format(ranks=4, rest=2)]
    found = [reasons(written(tmp_path, text, f"plan_{i}"), "xla") for i, text in enumerate(plans)]
    assert found[0] == found[1] and len(found[0]) == 1 and found[0][0].startswith("E0901 ")
    assert reasons(ROOT / "plans" / "tiny.plan", "xla") == []
