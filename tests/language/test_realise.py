"""`realise as FRAMEWORK`: what it decides, and that planc's own programs are without it."""

from pathlib import Path
from typing import Any

import pytest

import planc
from planc.frameworks import NAMES, policy_of
from planc.ir.plan import Plan
from planc.ir.read_plan import read_plan
from planc.syntax.fmt import format_text

TEXT = """plan x
model     llama2_7b(layers = 2, vocab = 50258)
batch     8 x 2048 tokens microbatch 1
cluster   1 x h100_node
mesh      dp 4 > tp 2
use       zero1 over dp
use       tp over tp
use       sp over tp
compute   bf16 reduce fp32
recompute blocks
"""


def plan_with(folder: Path, more: str, text: str = TEXT) -> Plan:
    file = folder / "x.plan"
    file.write_text(text + more)
    return planc.load(file)


def without_vocab(plan: Plan) -> dict[str, Any]:
    """The compiled plan without its file's sum and its vocabulary, which stays padded."""
    plain = plan.to_json() | {"sources": {}}
    sizes = {k: v for k, v in plain["model"]["sizes"].items() if k != "vocab"}
    return plain | {"model": plain["model"] | {"sizes": sizes}}


@pytest.fixture
def plain(tmp_path: Path) -> Plan:
    return plan_with(tmp_path, "")


def test_a_plan_without_the_sentence_is_as_before(plain: Plan, tmp_path: Path) -> None:
    """Its compiled form has no such field, and `realise as planc` changes none of its meaning."""
    assert "realise" not in plain.to_json() and plain.framework == "planc"
    own = plan_with(tmp_path, "realise as planc\n")
    assert own.to_json() | {"realise": None, "sources": {}} == plain.to_json() | {"realise": None, "sources": {}}


def test_megatron_pads_the_vocabulary_and_runs_blocks_to_their_end(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, "realise as megatron\n")
    assert plan.model.sizes["vocab"] == 50432 and plan.recompute.whole  # 197 times 128 x 2
    assert plan.attention is not None and plan.attention.method == "cudnn" and not plan.overlaps


def test_bridge_overlaps_tensor_parallelism(tmp_path: Path) -> None:
    assert [(o.axis, o.method) for o in plan_with(tmp_path, "realise as bridge\n").overlaps] == [("tp", "async_matmul")]


def test_a_sentence_beats_the_framework(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, "realise as bridge\nattention.core as flash\noverlap tp as none\n")
    assert plan.attention is not None and plan.attention.method == "flash"
    assert [o.method for o in plan.overlaps] == ["none"]


def test_selective_recomputation_is_the_framework_s(tmp_path: Path) -> None:
    text = TEXT.replace("recompute blocks", "recompute selective")
    assert plan_with(tmp_path, "", text).recompute.ops == ("attention.core",)
    assert "attention.out" in plan_with(tmp_path, "realise as torchtitan\n", text).recompute.ops


@pytest.mark.parametrize("name", NAMES)
def test_planc_s_program_is_without_the_framework(name: str, plain: Plan, tmp_path: Path) -> None:
    """Nothing of its rules is left but the padding."""
    plan = plan_with(tmp_path, f"realise as {name}\n")
    own = plan.for_planc
    again = read_plan(plan.to_json())
    assert again.canonical() == plan.canonical()
    assert without_vocab(own) == without_vocab(plain)
    assert policy_of(name).name == name


def test_a_program_that_is_asked_for_says_that_it_is_planc_s_own(tmp_path: Path) -> None:
    """Without a target the report is the framework's; with one there is N0905, and planc's own numbers."""
    plan_with(tmp_path, "realise as megatron\n")
    file = tmp_path / "x.plan"
    report, own = planc.check(file), planc.check(file, target="cuda")
    assert report.target is None and [d.code for d in report.diagnostics if d.code == "N0905"] == []
    assert own.target == "cuda" and [d.code for d in own.diagnostics if d.code == "N0905"] == ["N0905"]
    plan_with(tmp_path, "")
    wider = TEXT.replace("50258", "50432")
    plan_with(tmp_path, "", wider)
    assert own.step == planc.check(file, target="cuda").step


def test_the_sentence_is_formatted_and_misspelt_names_are_offered(tmp_path: Path) -> None:
    assert "realise   as megatron\n" in format_text(TEXT + "realise as   megatron\n")
    with pytest.raises(planc.PlanError, match="torchtitn"):
        plan_with(tmp_path, "realise as torchtitn\n")
