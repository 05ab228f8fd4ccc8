"""The scan of a state-space layer: its products and bytes, and its seconds beside published ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.costing import cost_plan
from planc.costing.compute.flops import model_flops_per_token, op_bytes, op_flops
from planc.costing.compute.scan import BACKWARD, FORWARD, scan_bytes, scan_s
from planc.ir.sharding import Sharded
from tests.plans import sharded_of

TOKENS = 4096
PLAN = """plan scans
model     nemotron_h_8b(layers = 8)
batch     16 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      dp 4 > tp 2
shard     batch over dp
compute   bf16 reduce fp32
"""
VALUES, GROUPS, STATE, CHUNK = 128 * 64, 8, 128, 128


VOCAB = "use vocab over tp\n"


def scans(folder: Path, more: str = VOCAB) -> Sharded:
    return sharded_of(folder, PLAN + more)


def test_its_products_and_bytes(tmp_path: Path) -> None:
    """Into the state and out of it, half of a chunk for each head, the weights of a chunk for each group; bytes of
    values and of what goes into the state in bf16, of states and products by chunk."""
    sharded = scans(tmp_path)
    o = sharded.op["mixer.scan"]
    assert op_flops(sharded, o) == TOKENS * (4 * VALUES * STATE + VALUES * CHUNK + 2 * GROUPS * CHUNK * STATE)
    each = 2 * (5 * VALUES + 8 * GROUPS * STATE) + 12 * VALUES * STATE / CHUNK + 8 * GROUPS * CHUNK
    assert op_bytes(sharded, o) == scan_bytes(sharded, o) == TOKENS * each


def test_heads_and_groups_are_divided_together(tmp_path: Path) -> None:
    """`use tp` divides the heads of the mixer and the groups that they share: half of all of it on each of two."""
    whole, halves = scans(tmp_path), scans(tmp_path, "shard heads, ffn over tp\n")
    for count in (op_flops, op_bytes):
        assert count(halves, halves.op["mixer.scan"]) == count(whole, whole.op["mixer.scan"]) / 2


def test_a_sequence_is_gathered_for_it(tmp_path: Path) -> None:
    """The recurrence runs over all of it: what context parallelism divides comes together before, and is cut behind."""
    sharded = scans(tmp_path, "shard sequence over tp\n")
    moved = [m.steps[0].kind for m in sharded.op["mixer.scan"].redistributions if m]
    assert moved == ["all_gather"] * 4 and "sequence" not in sharded.op["mixer.scan"].layout
    assert sharded.op["mixer.gated_norm"].layout["sequence"] == ("tp",)


def test_a_model_s_flops_count_what_goes_into_a_state_and_out_of_it(tmp_path: Path) -> None:
    model = scans(tmp_path).model
    products = {p for ops in model.ops.values() for op in ops if op.kind == "matmul" for p in op.params}
    matrices = 6 * sum(model.elements(model.param[p]) * model.copies(model.param[p]) for p in products)
    scan = 3 * 4 * VALUES * STATE * model.layers_of("mixer")
    attention = 6 * 32 * 256 * TOKENS / 2 * model.layers_of("attention")
    assert model_flops_per_token(model, TOKENS) == pytest.approx(matrices + scan + attention, rel=1e-9)


def test_the_forward_takes_as_long_as_published() -> None:
    """128 heads of 64, one group, a state of 128, chunks of 256, without the convolution: 12.6 million tokens/s on an
    H100 (vllm-project/vllm, pull request 27299)."""
    values, states_in = FORWARD.values - 2, FORWARD.states_in - 4
    each = 2 * (values * VALUES + states_in * STATE) + FORWARD.chunk_bytes * VALUES * STATE / 256
    each += FORWARD.score_bytes * 256
    assert each / (FORWARD.share * 3.35e12) == pytest.approx(1 / 12.6e6, rel=0.02)


PURE = {
    "model_type": "nemotron_h", "hidden_size": 2048, "num_attention_heads": 32, "hybrid_override_pattern": "M" * 48,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 1, "ssm_state_size": 128, "chunk_size": 256,
    "vocab_size": 50288, "tie_word_embeddings": True,
}  # fmt: skip
"""Mamba-2 of 1.3 billion parameters."""


@pytest.mark.parametrize(
    ("node", "published"), [("a100_node", 102.5e12), ("h200_node", 239.2e12), ("gb200_nvl72", 360.4e12)]
)
def test_whole_steps_are_near_those_published(node: str, published: float, tmp_path: Path) -> None:
    """FLOP/s of a training step of 4 sequences of 4096 tokens (state-spaces/mamba, issue 904), which the backward's
    share was read from."""
    (tmp_path / "config.json").write_text(json.dumps(PURE))
    text = PLAN.replace("nemotron_h_8b(layers = 8)", 'from "config.json"').replace("dp 4 > tp 2", "dp 1")
    text = text.replace("16 x 4096 tokens microbatch 1", "4 x 4096 tokens microbatch 4")
    sharded = sharded_of(tmp_path, text.replace("h100_node", f"{node}(1)") + "optimizer adamw\nrealise as torch\n")
    reached = 6 * sharded.model.parameters * 4 * TOKENS / cost_plan(sharded).step.time_s
    assert reached == pytest.approx(published, rel=0.2)


def test_its_seconds_are_its_bytes_at_the_share_that_its_kernels_reach(tmp_path: Path) -> None:
    sharded = scans(tmp_path)
    o, chip = sharded.op["mixer.scan"], sharded.plan.cluster.chip
    for passes, backward in ((FORWARD, False), (BACKWARD, True)):
        seconds = scan_bytes(sharded, o, backward=backward) / (passes.share * chip.memory_bandwidth_bytes_per_s)
        expected = seconds + passes.kernels * chip.launch_s
        assert scan_s(sharded, o, chip, backward=backward) == pytest.approx(expected)
