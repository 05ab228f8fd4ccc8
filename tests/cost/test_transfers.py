"""One costing path: rows and propagation give the same transfers, and the step is longer by what rows expose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planc.costing import CostedPlan, cost_plan
from planc.costing.step.transfers import LinkTimes, transfers_of_calls, transfers_of_rows
from planc.driver import examine, load
from planc.ir.target import AnyTarget, Target
from planc.sharding.activation_collectives import PHASES, activation_calls
from planc.sharding.collectives import semantic_collectives
from planc.sharding.stage_assignment import load_of, microbatches_each, replayed_copies
from planc.sharding.state_collectives import scalars, state
from tests.plans import BUNDLED, FIELD, HEAD_BF16, plan_of, propagated

LAYOUT = HEAD_BF16 + "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\n"
PIPELINED = """plan example
model     llama3_8b
batch     64 x 1024 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
split     layers over pp as 1f1b
compute   fp32
"""
PLANS = {
    "waits": LAYOUT + "overlap fsdp as none\n",
    "async_matmul": LAYOUT + "overlap tp as async_matmul\n",
    "gathered_once": LAYOUT + "gather params per step\n",
    "one_microbatch": LAYOUT.replace("batch     64", "batch     8"),
    "pipeline": PIPELINED,
    "every_third": PIPELINED + "recompute blocks every 3 layers\n",
    "tied": PIPELINED.replace("llama3_8b", "gpt3_6_7b"),
}


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda p: p.stem)
def test_rows_and_propagation_give_the_same_transfers(path: Path) -> None:
    sharded, links = propagated(load(path)), LinkTimes()
    plan = sharded.plan
    every = {
        s: [
            *(
                t
                for phase in PHASES
                for t in transfers_of_calls(sharded, s, activation_calls(sharded, s, phase), links)
            ),
            *transfers_of_calls(sharded, s, state(sharded, s), links),
        ]
        for s in sharded.ops
    }
    every["step"] = transfers_of_calls(sharded, "step", scalars(sharded), links)
    for rank in range(plan.pipeline):
        between = (plan.split.axis,) if plan.split else ()
        mine = [r for r in semantic_collectives(sharded) if r.stage == rank and r.axes != between]
        replayed, held = replayed_copies(plan, rank), load_of(plan, rank)
        expected = [t for s in (*held, "step") for t in every[s] if t.phase != "recompute" or replayed[s]]
        assert transfers_of_rows(plan, mine, held, replayed, links) == [t for t in expected if t.axes != between]


def _exposed_s(costed: CostedPlan) -> float:
    return sum(r.exposed_s for r in costed.collectives)


LOWERED: dict[Target, tuple[str, ...]] = {
    "cuda": ("gathered_once", "one_microbatch", "pipeline", "every_third", "tied"),
    "xla": ("gathered_once", "one_microbatch", "pipeline"),
}
"""The plans of PLANS that each target lowers; it refuses a sentence of the others."""
COSTED = [*((name, "none") for name in PLANS), *((name, target) for target, names in LOWERED.items() for name in names)]


@pytest.mark.parametrize("target", LOWERED)
def test_a_target_lowers_these_plans_alone(tmp_path: Path, target: Target) -> None:
    costed = {name for name, text in PLANS.items() if examine(plan_of(tmp_path, text), target=target).costed}
    assert costed == set(LOWERED[target])


@pytest.mark.parametrize(("name", "target"), COSTED)
def test_exposed_seconds_of_rows_are_those_of_the_step(tmp_path: Path, name: str, target: AnyTarget) -> None:
    costed = examine(plan_of(tmp_path, PLANS[name]), target=target).costed
    assert costed is not None
    assert costed.step.exposed_comm_s > 0
    assert _exposed_s(costed) == pytest.approx(costed.step.exposed_comm_s, rel=1e-9)


def test_a_row_says_how_often_it_is_issued(tmp_path: Path) -> None:
    """FSDP gathers in every microbatch; `gather params per step` once; gradients of ZeRO-1 are reduced once."""

    def per(text: str, carries: str) -> set[str]:
        rows = semantic_collectives(propagated(plan_of(tmp_path, text)))
        return {r.per for r in rows if r.carries == carries and "fsdp" in r.axes}

    assert per(LAYOUT, "param") == per(LAYOUT, "grad") == {"microbatch"}
    assert per(PLANS["gathered_once"], "param") == {"step"}
    assert per(LAYOUT.replace("use fsdp", "use zero1"), "grad") == {"step"}
    assert per(LAYOUT, "scalar") == {"step"}


def test_a_target_may_change_how_often(tmp_path: Path) -> None:
    """A torch pipeline keeps whole gradients to the end of the step and reduces them once; XLA sums each time."""
    plan = plan_of(tmp_path, PIPELINED)
    once = examine(plan, target="cuda").costed
    assert once is not None
    assert {r.row.per for r in once.collectives if r.row.carries == "grad"} == {"step"}
    often = examine(plan_of(tmp_path, LAYOUT.replace("use fsdp", "use zero1")), target="xla").costed
    assert often is not None
    assert "microbatch" in {r.row.per for r in often.collectives if r.row.carries == "grad"}


def test_sections_on_every_rank_belong_to_the_step_where_a_rank_holds_none(tmp_path: Path) -> None:
    """The embedding that a target runs on a rank without it is exposed after that rank's last microbatch."""
    sharded = propagated(plan_of(tmp_path, PIPELINED))
    rows = semantic_collectives(sharded)
    ends = [r for r in rows if r.section == "first" and r.carries == "grad"]
    assert ends and {r.stage for r in ends} == {0}
    more = [replace(r, stage=1, per="step", count=1) for r in ends]
    before, after = cost_plan(sharded, rows), cost_plan(sharded, (*rows, *more))
    waited = sum(s for r, s in zip(after.timed.rows, after.timed.exposed, strict=True) if r in more)
    assert 0 < waited == pytest.approx(after.timed.after_s[1] - before.timed.after_s[1])
    assert microbatches_each(sharded.plan) > 1


def test_one_microbatch_has_one_window(tmp_path: Path) -> None:
    """With one microbatch a step, transfers of each microbatch and of the step hide behind the same compute."""
    sharded = propagated(plan_of(tmp_path, PLANS["one_microbatch"]))
    rows = semantic_collectives(sharded)
    mixed = tuple(replace(r, per="step") if r.carries == "param" and i % 2 else r for i, r in enumerate(rows))
    assert microbatches_each(sharded.plan) == 1 and mixed != rows
    one, other = cost_plan(sharded, rows).step, cost_plan(sharded, mixed).step
    assert one.time_s == pytest.approx(other.time_s, rel=1e-12)
