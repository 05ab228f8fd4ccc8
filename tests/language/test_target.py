"""The target of a plan: its cluster's, a sentence's, or the caller's."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.driver import check, load
from planc.ir.report import Report

HEAD = """plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   {cluster}
mesh      fsdp 64
use       fsdp over fsdp
compute   fp32
recompute blocks
"""
GPUS, TPUS = "8 x h100_node", "tpu_v5p(4x4x4)"


def checked(folder: Path, cluster: str, more: str = "", target: str | None = None) -> Report:
    path = folder / "example.plan"
    path.write_text(HEAD.format(cluster=cluster) + more)
    return check(path, target=target)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cluster", "target"), [(GPUS, "cuda"), (TPUS, "xla")])
def test_a_plan_is_costed_as_the_program_of_its_cluster(tmp_path: Path, cluster: str, target: str) -> None:
    assert checked(tmp_path, cluster).target == target
    assert checked(tmp_path, cluster).memory == checked(tmp_path, cluster, target=target).memory
    assert checked(tmp_path, cluster, "target none\n").target is None
    assert checked(tmp_path, cluster, "target none\n", target=target).target == target


def test_a_target_that_is_only_the_cluster_s_may_refuse(tmp_path: Path) -> None:
    """Named by a sentence or the caller, it makes the plan wrong."""
    more = "quantize ffn as float8(blockwise)\n"
    report = checked(tmp_path, TPUS, more)
    assert report.ok and report.target is None and report.memory is not None
    (xla,) = [t for t in report.targets if t.target == "xla"]
    assert not xla.lowers and [(r.code, r.line) for r in xla.refusals] == [("E0901", 9)]
    for wrong in (checked(tmp_path, TPUS, more + "target xla\n"), checked(tmp_path, TPUS, more, target="xla")):
        assert {d.code for d in wrong.diagnostics} == {"E0901", "W0311"}
        assert wrong.memory is None and wrong.target == "xla"


def test_sentences_for_the_cluster_s_target_are_read(tmp_path: Path) -> None:
    on = "on cuda: gather params per step\n"
    assert checked(tmp_path, GPUS, on).memory == checked(tmp_path, GPUS, "gather params per step\n").memory
    assert checked(tmp_path, TPUS, on).memory == checked(tmp_path, TPUS).memory


def test_the_sentence_is_no_part_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "example.plan"
    path.write_text(HEAD.format(cluster=GPUS))
    before = load(path)
    path.write_text(HEAD.format(cluster=GPUS) + "target xla\n")
    assert load(path).mesh == before.mesh and '"target"' not in load(path).canonical()


@pytest.mark.parametrize("more", ["target tpu\n", "on cuda: target xla\n"])
def test_what_is_no_target(tmp_path: Path, more: str) -> None:
    assert [d.code for d in checked(tmp_path, GPUS, more).diagnostics] == ["E0108"]
