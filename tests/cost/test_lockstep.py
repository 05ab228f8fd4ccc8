"""Pipelines whose ranks run one program: each tick is as long as the longest stage, both ends are everybody's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planc.costing.step.step_time import Timed, copies_run, step_time, updated_load
from planc.driver import examine
from planc.ir.sharding import Sharded
from tests.plans import sharded_of, written

PLAN = """plan example
model     llama3_8b
batch     64 x 1024 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
split     layers over pp as 1f1b{stages}
compute   fp32
"""
UNEVEN = " stages [embed + 7, 9, 9, 7 + head]"


def both(folder: Path, stages: str = "") -> tuple[Sharded, Timed, Timed]:
    """The layouts, and the step of ranks with a program each and with one of all."""
    sharded = sharded_of(folder, PLAN.format(stages=stages))
    return sharded, step_time(sharded), step_time(replace(sharded, stack=replace(sharded.stack, lockstep=True)))


def ends_s(apart: Timed) -> float:
    """Forward seconds of what lies before and after the layers: of ranks with a program each, what their first and
    last of equal stages take longer."""
    return sum(apart.costs[v].forward_s - apart.costs[1].forward_s for v in (0, 3))


def test_every_stage_takes_as_long_as_the_longest(tmp_path: Path) -> None:
    _, even, _ = both(tmp_path)
    _, apart, together = both(tmp_path, UNEVEN)
    each = [cost.forward_s for cost in together.costs]
    assert each == pytest.approx([apart.costs[1].forward_s + ends_s(even) / 4] * 4)


def test_both_ends_are_shared_by_all_ranks(tmp_path: Path) -> None:
    sharded, apart, together = both(tmp_path)
    assert [c.forward_s for c in together.costs] == pytest.approx([apart.costs[1].forward_s + ends_s(apart) / 4] * 4)
    one = replace(sharded, stack=replace(sharded.stack, lockstep=True))
    assert copies_run(one, 2) == {"first": 0.25, "block": 8, "last": 0.25} and copies_run(sharded, 2) == {"block": 8}
    assert updated_load(one, 2) == {"first": 1, "block": 8, "last": 1}


def test_a_step_is_as_long_as_its_ticks(tmp_path: Path) -> None:
    """35 ticks have a forward, and as many a backward."""
    _, _, together = both(tmp_path)
    assert together.split is not None and together.split.schedule == "1f1b_in_lockstep"
    times = together.times
    assert together.timeline.makespan_s == pytest.approx(35 * (times.forward_s[0] + times.backward_s[0]))


def test_a_target_says_which_ranks_run_one_program(tmp_path: Path) -> None:
    found = {t: examine(written(tmp_path, PLAN.format(stages="") + f"target {t}\n")).costed for t in ("cuda", "xla")}
    assert {t: costed is not None and costed.sharded.stack.lockstep for t, costed in found.items()} == {
        "cuda": False,
        "xla": True,
    }
