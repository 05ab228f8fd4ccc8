"""Laws of physics and of views on some drawn plans; `python -m tests.random_plans.physics` is the campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.cli import COMMANDS
from planc.driver import examine
from planc.report.data import Subject
from planc.report.views.roofline import roofline
from tests.plans import ROOT
from tests.random_plans import extremes, physics
from tests.random_plans.promises import write
from tests.random_plans.run import drawn_of

FROZEN = (120, 1560, 1673, 1708)
"""Seeds of plans that freeze weights."""


@pytest.mark.parametrize("seed", [*range(8), *FROZEN])
def test_no_op_beats_the_machine_and_stored_state_is_less(seed: int, tmp_path: Path) -> None:
    costed = examine(write(drawn_of(seed), tmp_path), targets=()).costed
    assert costed is not None
    assert [*physics.floors(costed), *physics.less_state(costed)] == []


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.long if n > 5 else ()) for n in range(40)])
def test_every_view_of_an_extreme_plan_exists(seed: int, tmp_path: Path) -> None:
    extremes.views(write(extremes.draw(seed), tmp_path))


@pytest.mark.parametrize("framework", ["bridge", "torchtitan", "deepspeed"])
def test_search_counts_the_memory_that_check_counts(framework: str, tmp_path: Path) -> None:
    """Workspaces, the update's copies, and what an allocator loses across nodes included."""
    path = tmp_path / "plan.plan"
    path.write_text(
        "plan p\nmodel llama3_8b\nbatch 32 x 4096 tokens microbatch 1\ncluster 2 x h100_node\nmesh fsdp 16\n"
        f"use fsdp over fsdp\ncompute bf16 reduce fp32\nrealise as {framework}\n"
    )
    extremes.views(path)


def test_no_op_lies_above_the_roof() -> None:
    """Keys and values take a share of the product that queries have most of, and of its bytes."""
    path = ROOT / "plans/llama3_70b_h100.plan"
    examined = examine(path)
    assert examined.costed is not None
    data = roofline(Subject(examined=examined, costed=examined.costed, command=""))
    for op in data.ops:
        assert op.bytes <= op.seconds * data.bytes_per_s * physics.EXACT, op
        assert op.flops <= op.seconds * data.flops_per_s * physics.EXACT, op


def test_every_command_is_asked() -> None:
    assert sorted((*extremes.VIEWS, *extremes.NO_PLAN, *extremes.SLOW)) == sorted(COMMANDS)
