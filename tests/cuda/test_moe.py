"""Models with experts: every layout trains as one process does, and moves what the rules say it moves.

With the rows that the router really sent: a dropless exchange is as large as its choice.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planc.backends.common.sequence_order import held_order
from planc.backends.cuda.refusals.plan import refusals
from planc.checks import check_plan
from planc.lowering import lower_plan
from tests.launches import Row, case, tier
from tests.plans import propagated

from .cases import plan_of
from .moe_cases import CI, DEEPSEEK, FINE_TUNED, MIXTRAL, QUICK, QWEN3, moe_case

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 1e-5
COUNTED_TOGETHER = ("etp_balanced",)
"""Ranks with parts of the same sequences add up what they picked: a call of the run, not of the plan."""
GROUPS = {"mixtral": MIXTRAL, "tuned": FINE_TUNED, "qwen3": QWEN3, "deepseek": DEEPSEEK}


def cases(*left_out: str) -> list[Any]:
    """Layouts of all groups but those left out."""
    return [
        case("cuda-4-compiled" if name.startswith("compile") else "cuda-4", name, *tier(name, CI, QUICK))
        for group in GROUPS.values()
        for name in group
        if name not in left_out
    ]


@pytest.mark.parametrize("name", cases())
def test_trains_as_one_process(name: str, row: Row) -> None:
    assert row["dead"] == [], "a reference gradient is zero: the comparison would prove nothing"
    assert max(row["gradient"]) <= BUDGET, row["where"]
    assert row["loss"] <= BUDGET
    assert row["norm"] <= BUDGET
    assert row["evaluated"] <= BUDGET
    assert row["miscounted"] == [], "steps in which other numbers of tokens were counted"


@pytest.mark.parametrize("name", cases(*COUNTED_TOGETHER))
def test_issues_the_collectives_that_the_rules_predict(name: str, row: Row) -> None:
    """Calls and bytes per operation and mesh dimension, on every rank, of one step after the first."""
    assert row["collectives"] == []


@pytest.mark.parametrize("name", [name for group in GROUPS.values() for name in group])
def test_it_is_lowered(name: str) -> None:
    sharded = propagated(moe_case(name))
    assert refusals(sharded) == []
    compile(lower_plan(check_plan(sharded.plan), "cuda").text, name, "exec")


@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        ("moe_fsdp", "fully_shard(block", "moe.experts"),
        ("ep_fsdp", "fc.all_to_all_single_autograd(t, self.received, self.sent", "self.sharing"),
        ("ep_over_tp", 'mesh["fsdp"]', "build_expert_mesh"),
        ("etp", "redistribute(placements=[Shard(0)])", "all_to_all_single"),
        ("etp_same_tokens", "grad_placements=[Partial()]", "sizes("),
        ("capacity", "math.ceil(len(rows) * 1.25 / len(counts))", "sizes("),
        ("compile_ep", 'if path in ("moe",)', "fullgraph"),
        ("compile_capacity", "module.forward = torch.compiler.disable(module.forward)", "fullgraph"),
        ("tuned_ep_fsdp", "experts.set_modules_to_backward_prefetch([experts])", "first.set_modules"),
        ("deepseek_ep", "fully_shard(experts", "apply_tp"),
        ("deepseek_tp", '"attention.keys": ReplicatedInput(input_layouts=(None, Replicate()))', '"attention.wkv_a"'),
        ("deepseek_tp_sp", "model.set_requires_all_reduce(last)", "all_to_all"),
        (
            "deepseek_tp_sp",
            '"attention.keys": ReplicatedInput(input_layouts=(None, Shard(1)))',
            "PrepareModuleInputOutput",
        ),
        ("deepseek_tp_sequence", '"attention.keys": PrepareModuleInput(', "ReplicatedInput("),
        ("deepseek_tp_pipeline", '"attention.keys": ReplicatedInput(', "build_expert_mesh"),
    ],
)
def test_a_sentence_writes_what_it_needs(name: str, present: str, absent: str) -> None:
    text = lower_plan(check_plan(moe_case(name)), "cuda").text
    assert present in text
    assert absent not in text


@pytest.mark.parametrize("balance", ["headtail", "none"])
def test_a_reference_drops_the_tokens_that_ranks_drop(balance: str) -> None:
    """Its order of a sequence is that of the rows that the program takes, rank after rank."""
    attention = f"attention.core as all_gather(balance = {balance})"
    plan = plan_of("order", "dp 2 > cp 2", "use ddp over dp", "shard sequence over cp", attention, batch="8 x 8 tokens")
    emitted: Any = lower_plan(check_plan(plan), "cuda").load()
    rows: list[int] = []
    for rank in range(2):
        rows += emitted.sequence_rows(SimpleNamespace(device_type="cpu", get_rank=lambda rank=rank: rank)).tolist()
    assert held_order(plan) == rows


def test_every_text_is_as_ruff_would_have_it(tmp_path: Path) -> None:
    for name in (*MIXTRAL, *FINE_TUNED, *QWEN3, *DEEPSEEK):
        (tmp_path / f"{name}.py").write_text(lower_plan(check_plan(moe_case(name)), "cuda").text)
    for command in (["format", "--check"], ["check"]):
        argv = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
