"""Facts derived from the graphs under a plan: collectives and gradients that users of each family know."""

from __future__ import annotations

from pathlib import Path

from planc.ir.sharding import Sharded
from planc.sharding.activation_collectives import backward, forward
from tests.plans import plan_of, propagated

TP = ("use tp over tp", "use sp over tp")


def sharded(folder: Path, model: str, *sentences: str) -> Sharded:
    head = (
        f"plan example\nmodel {model}\nbatch 64 x 2048 tokens microbatch 1\ncluster 2 x h100_node\nmesh dp 2 > tp 8\n"
    )
    return propagated(plan_of(folder, head + "\n".join(("shard batch over dp", "compute fp32", *sentences)) + "\n"))


def moved(found: Sharded, section: str = "block") -> dict[str, set[str]]:
    """Tensors by what moves them, forward."""
    calls: dict[str, set[str]] = {}
    for call in forward(found, section):
        calls.setdefault(call.op, set()).add(call.tensor)
    return calls


def partial(found: Sharded, name: str) -> set[str]:
    return set(found.param[f"layers.*.{name}"].grad_partial)


def test_latent_attention_gathers_what_is_narrow(tmp_path: Path) -> None:
    found = sharded(tmp_path, "deepseek_v3", "shard heads, ffn, vocab over tp", "use sp over tp")
    gathers = {"mla.q_normed", "mla.kv_normed", "mla.k_rotated"}
    assert moved(found, "dense") == {
        "all_gather": {*gathers, "ffn.in"},
        "reduce_scatter": {"attention.out", "ffn.out"},
    }
    back = {c.tensor: c.op for c in backward(found, "dense")}
    assert {back[t] for t in gathers} == {"reduce_scatter"}, "every head adds to the gradient of the shared key"


def test_norms_of_heads_have_gradients_from_all_heads(tmp_path: Path) -> None:
    found = sharded(tmp_path, "qwen3_8b", *TP)
    assert partial(found, "attention.q_norm.weight") == {"dp", "tp"}
    assert partial(found, "attention.wq.weight") == {"dp"}


def test_a_row_parallel_bias_is_summed_over_the_divided_sequence_only(tmp_path: Path) -> None:
    assert partial(sharded(tmp_path, "megatron_1_7b", *TP), "attention.wo.bias") == {"dp", "tp"}
    assert partial(sharded(tmp_path, "megatron_1_7b", TP[0]), "attention.wo.bias") == {"dp"}
    assert partial(sharded(tmp_path, "megatron_1_7b", *TP), "attention.wq.bias") == {"dp"}


def test_a_plain_mlp_moves_what_a_gated_one_does(tmp_path: Path) -> None:
    expected = {"all_gather": {"attention.in", "ffn.in"}, "reduce_scatter": {"attention.out", "ffn.out"}}
    assert moved(sharded(tmp_path, "megatron_1_7b", *TP)) == expected
    assert moved(sharded(tmp_path, "llama3_8b", *TP)) == expected


def test_both_kinds_of_block_of_gpt_oss_move_alike(tmp_path: Path) -> None:
    found = sharded(tmp_path, "gpt_oss_20b", "shard heads, vocab over tp", "use sp over tp")
    assert moved(found, "sliding") == moved(found, "block")
    assert moved(found)["reduce_scatter"] == {"attention.out"}
