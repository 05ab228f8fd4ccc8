"""DualPipe against a plain pipeline of the same model: two copies, half the microbatches on each."""

from pathlib import Path

import pytest

from planc.driver import check
from planc.ir.plan import Plan
from planc.sharding.collectives import semantic_collectives
from planc.sharding.stage_assignment import virtual_stages
from tests.plans import plan_of, propagated

PLAN = """plan example
model     llama3_8b
batch     64 x 1024 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
split     layers over pp as {schedule}
compute   fp32
recompute blocks
"""


def plans(folder: Path) -> tuple[Plan, Plan]:
    two, one = (plan_of(folder, PLAN.format(schedule=s)) for s in ("dualpipe", "1f1b"))
    return two, one


def test_a_rank_holds_its_stage_and_its_mirror_s(tmp_path: Path) -> None:
    two, _ = plans(tmp_path)
    assert [virtual_stages(two, rank) for rank in range(4)] == [(0, 3), (1, 2), (1, 2), (0, 3)]
    report = check(two)
    assert sum(s.layers for s in report.memory.stages) == 2 * 32


def test_every_gradient_is_exchanged_once(tmp_path: Path) -> None:
    """All of the two copies' parameters, as they are kept: fp32 over fsdp 2. A plain pipeline has none."""
    two, one = plans(tmp_path)
    rows = [
        r
        for r in semantic_collectives(propagated(two))
        if r.op == "all_reduce" and r.carries == "grad" and r.axes == ("pp",)
    ]
    assert sum(r.payload_bytes for r in rows) == pytest.approx(2 * two.model.parameters * 4 / 2)
    assert {(r.group_size, r.phase) for r in rows} == {(2, "optimizer")}
    assert not any(
        r.op == "all_reduce" and r.carries == "grad" and r.axes == ("pp",)
        for r in semantic_collectives(propagated(one))
    )


def test_a_step_moves_and_computes_as_much(tmp_path: Path) -> None:
    """Each microbatch passes every stage once, whichever copy it meets; the sends are as many."""
    two, one = plans(tmp_path)
    even = ((0, 8), (8, 16), (16, 24), (24, 32))
    assert two.split is not None and one.split is not None
    assert two.split.stages == one.split.stages == even
    sent = [
        sum(r.count for r in semantic_collectives(propagated(p)) if r.op == "send_recv" and r.carries == "activation")
        for p in (two, one)
    ]
    assert sent == [6 * 32, 6 * 32]
    a, b = check(two).step, check(one).step
    assert a.compute_s < b.compute_s, "the rank with the head has half of its work"
    assert a.bubble_s < b.bubble_s
