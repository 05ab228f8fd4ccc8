"""Models with experts: every layout trains as one process does, and moves what the rules say it moves.

With the rows that the router really sent: a dropless exchange is as large as its choice.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planc.backends.cuda.refusals.plan import refusals
from planc.checks import check_plan
from planc.lowering import lower_plan
from planc.trainer.run.launch import run
from tests.plans import propagated
from tests.rows import parity_rows

from .moe_cases import CI, DEEPSEEK, MIXTRAL, QWEN3, moe_case

WORKER = Path(__file__).with_name("worker.py")
ROOT = Path(__file__).resolve().parents[2]
BUDGET = 1e-5
COUNTED_TOGETHER = ("etp_balanced",)
"""Ranks with parts of the same sequences add up what they picked: a call of the run, not of the plan."""
GROUPS = {"mixtral": MIXTRAL, "qwen3": QWEN3, "deepseek": DEEPSEEK}


@cache
def rows(names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """These layouts compared with one process, one after the other in one launch of four."""
    finished = run([sys.executable, str(WORKER), *names], 4, timeout_s=900)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    return parity_rows("cuda", finished.outputs[0])


def cases() -> list[Any]:
    """A launch for those that every run makes, one for the others."""
    every = [name for group in GROUPS.values() for name in group]
    groups = {name: tuple(n for n in every if (n in CI) == (name in CI)) for name in every}
    slow = {name: [] if name in CI else [pytest.mark.slow] for name in every}
    return [pytest.param(groups[n], n, marks=[pytest.mark.launch, *slow[n]], id=n) for n in every]


@pytest.mark.parametrize(("group", "name"), cases())
def test_trains_as_one_process(group: tuple[str, ...], name: str) -> None:
    row = rows(group)[name]
    assert row["dead"] == [], "a reference gradient is zero: the comparison would prove nothing"
    assert max(row["gradient"]) <= BUDGET, row["where"]
    assert row["loss"] <= BUDGET
    assert row["norm"] <= BUDGET
    assert row["evaluated"] <= BUDGET


@pytest.mark.parametrize(("group", "name"), [c for c in cases() if c.id not in COUNTED_TOGETHER])
def test_issues_the_collectives_that_the_rules_predict(group: tuple[str, ...], name: str) -> None:
    """Calls and bytes per operation and mesh dimension, on every rank, of one step after the first."""
    assert rows(group)[name]["collectives"] == []


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
        ("deepseek_ep", "fully_shard(experts", "apply_tp"),
    ],
)
def test_a_sentence_writes_what_it_needs(name: str, present: str, absent: str) -> None:
    text = lower_plan(check_plan(moe_case(name)), "cuda").text
    assert present in text
    assert absent not in text


def test_every_text_is_as_ruff_would_have_it(tmp_path: Path) -> None:
    for name in (*MIXTRAL, *QWEN3, *DEEPSEEK):
        (tmp_path / f"{name}.py").write_text(lower_plan(check_plan(moe_case(name)), "cuda").text)
    for command in (["format", "--check"], ["check"]):
        argv = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
