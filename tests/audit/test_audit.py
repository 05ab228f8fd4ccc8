"""The short form of the audit: some layouts traced, what finds a fault, and the yardsticks of its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from planc.backends.common.shrunk import shrunk, size_changes
from planc.backends.cuda.audit import run as auditing
from planc.backends.cuda.audit.attention import one_kernel_attention
from planc.backends.cuda.audit.predict import predicted
from planc.cli import main
from planc.diag import PlanError
from planc.ir.audit import Audit, AuditOptions, AuditRow, MatmulFlops, Placed, Total, compared, differences
from planc.ir.sharding import Sharded
from tests.plans import propagated

from .cases import plan_of

ROOT = Path(__file__).parents[2]
PEAK_WITHIN = 0.05
TRACKERS_WITHIN = 0.02


@pytest.mark.launch
@pytest.mark.parametrize(
    "name", ["tp_sp_64", *(pytest.param(n, marks=pytest.mark.long) for n in ("fsdp_64", "hsdp_64"))]
)
def test_a_layout_moves_and_holds_what_was_predicted(name: str) -> None:
    found = auditing.audit(plan_of(name), AuditOptions())
    assert differences(found.rows) == [] and found.unparsed == ()
    assert sum(row.observed.count for row in found.rows) > 10
    assert all(abs(m.relative) <= PEAK_WITHIN for m in found.memory)
    assert found.matmuls and all(m.relative == 0 for m in found.matmuls)


@pytest.mark.parametrize("width", [8, 24, 32])
def test_attention_is_one_kernel_whatever_the_width_of_its_values(width: int) -> None:
    """Keys of 24, as DeepSeek's: its values may be wider."""
    q, k, v = (torch.zeros(1, 2, 4, wide, requires_grad=True) for wide in (24, 24, width))
    tracker: Any = SimpleNamespace(hold=lambda tensors: None)
    with one_kernel_attention(tracker):
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mixed.sum().backward()
    assert mixed.shape == v.shape
    assert all(x.grad is not None and x.grad.shape == x.shape for x in (q, k, v))


@pytest.mark.launch
def test_a_prediction_without_a_rule_is_found_wrong() -> None:
    """The audit can fail: where the prediction of a gather has half its bytes, it says so."""

    def halved(sharded: Sharded, stage: int) -> dict[Any, Total]:
        return {
            k: replace(t, bytes=t.bytes // 2) if k[0] == "all_gather" else t
            for k, t in predicted(sharded, stage).items()
        }

    with patch.object(auditing, "predicted", halved):
        found = auditing.audit(plan_of("fsdp_64"), AuditOptions(world_scale=8))
    assert not found.ok
    assert [row.op for row in found.rows if not row.agrees] == ["all_gather"]
    assert found.traced_devices == 8 and "fsdp 64 -> 8" in found.normalisations[0]


@pytest.mark.launch
@pytest.mark.long
def test_our_tracker_and_that_of_torch_agree() -> None:
    """Without tensor parallelism, where torch's counts no metadata of DTensors either."""
    script = ROOT / "tests" / "audit" / "both_trackers.py"
    ours, theirs = (
        int(subprocess.run([sys.executable, script, "fsdp_64", who], capture_output=True, check=True).stdout)
        for who in ("ours", "torch")
    )
    assert ours == pytest.approx(theirs, rel=TRACKERS_WITHIN)


@pytest.mark.launch
@pytest.mark.long
def test_a_second_observer_counts_the_same_calls() -> None:
    """torch's CommDebugMode, over the same step."""
    script = ROOT / "tests" / "audit" / "both_observers.py"
    done = subprocess.run([sys.executable, script, "tp_sp_64"], capture_output=True, check=True)
    counts = json.loads(done.stdout)
    assert counts["ours"] == counts["torch"]
    assert min(counts["ours"][op] for op in ("all_gather", "reduce_scatter", "all_reduce")) > 10


@pytest.mark.launch
def test_the_command_prints_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["audit", str(ROOT / "plans" / "tiny.plan"), "--target", "cuda", "--format", "json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["ok"], found["unparsed"]) == ("planc.audit/1", True, [])
    for row in found["rows"]:
        assert set(row) == {"op", "axis", "dtype", "stage", "predicted", "observed", "difference"}
        assert row["difference"] == {"count": 0, "bytes": 0}


def test_a_difference_is_said_and_makes_the_answer_no() -> None:
    key = ("all_gather", "tp", "bf16")
    rows = compared(1, {key: Total(4, 400)}, {key: Total(3, 300)})
    assert rows[0].difference == Total(-1, -100)
    assert "stage 1: all_gather over tp in bf16: predicted 4 calls" in differences(rows)[0]
    assert not _audit(rows).ok
    assert not _audit((), unparsed=("broadcast_",)).ok
    sums = (MatmulFlops(stage=0, predicted_flops=n, observed_flops=100.0) for n in (97.0, 99.0))
    assert [replace(_audit(()), matmuls=(one,)).ok for one in sums] == [False, True]
    assert not replace(_audit(()), placed=Placed(ranks=4, otherwise={"sequences": (1, 2)})).ok
    assert _audit(compared(0, {key: Total(4, 400)}, {key: Total(4, 400)})).ok


def _audit(rows: tuple[AuditRow, ...], unparsed: tuple[str, ...] = ()) -> Audit:
    return Audit(plan="p", plan_sha256="", target="cuda", devices=4, traced_devices=4, rows=rows, unparsed=unparsed)


@pytest.mark.parametrize(
    ("name", "ranks", "sizes"),
    [
        ("tp_sp_16384", 64, {"fsdp": 8, "tp": 8}),
        ("hsdp_1024_recompute", 16, {"replica": 4, "fsdp": 4}),
        ("tp_sp_64", 1, {"fsdp": 2, "tp": 8}),
        ("gpipe_64", 4096, {"pp": 4, "fsdp": 16}),
    ],
)
def test_a_smaller_world_changes_data_parallel_ranks_alone(name: str, ranks: int, sizes: dict[str, int]) -> None:
    plan = plan_of(name)
    small = shrunk(plan, ranks)
    assert small.mesh.sizes == sizes
    assert small.microbatches == plan.microbatches
    assert bool(size_changes(plan, small)) == (sizes != plan.mesh.sizes)


def test_calls_do_not_depend_on_the_world() -> None:
    """A smaller world is a fair stand-in: calls stay, bytes change with padding alone."""
    plan = plan_of("tp_sp_16384")
    large, small = (predicted(propagated(p), 0) for p in (plan, shrunk(plan, 64)))
    assert {k: t.count for k, t in large.items()} == {k: t.count for k, t in small.items()}


def test_an_audit_on_cuda_takes_no_topology() -> None:
    with pytest.raises(PlanError, match="E0902"):
        auditing.audit(plan_of("fsdp_64"), AuditOptions(topology="v5p:4x4x4"))
