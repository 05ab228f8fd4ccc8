"""`freeze` and `lora`: what the sentences name, and the model that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.ir.model import Model
from planc.ir.plan import Plan
from planc.ir.read_plan import read_plan
from tests.plans import HEAD, codes, plan_of

TAIL = "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\nrecompute blocks\n"


def tuned(folder: Path, *sentences: str, head: str = HEAD) -> Plan:
    return plan_of(folder, head + "\n".join(sentences) + "\n" + TAIL)


def trained(model: Model) -> set[str]:
    return {p.name for p in model.params if not p.frozen}


def layer(*names: str) -> set[str]:
    return {f"layers.*.{name}" for name in names}


def test_an_update_has_two_matrices_and_all_else_is_frozen(tmp_path: Path) -> None:
    plan = tuned(tmp_path, "lora rank 16 on heads")
    model = plan.model
    assert trained(model) == layer(*(f"attention.{w}.lora_{m}" for w in ("wq", "wk", "wv", "wo") for m in "ab"))
    shapes = {p.name.removeprefix("layers.*.attention."): model.shape(p) for p in model.params if "lora" in p.name}
    assert shapes["wk.lora_a"] == (16, 4096) and shapes["wk.lora_b"] == (1024, 16)
    assert model.trained_parameters == 32 * sum(a * b for a, b in shapes.values())
    assert model.parameters == model.trained_parameters + 8_030_261_248
    assert plan.lora is not None and plan.lora.alpha == 16


@pytest.mark.parametrize(
    ("words", "ops"),
    [
        ("heads", ("attention.q", "attention.k", "attention.v", "attention.out")),
        ("kv_heads", ("attention.k", "attention.v")),
        ("ffn", ("ffn.gate", "ffn.up", "ffn.down")),
        ("attention.q, ffn.down", ("attention.q", "ffn.down")),
        ("q_proj, o_proj, up_proj", ("attention.q", "attention.out", "ffn.up")),
    ],
)
def test_matmuls_are_named_by_a_dim_or_by_their_ops(tmp_path: Path, words: str, ops: tuple[str, ...]) -> None:
    plan = tuned(tmp_path, f"lora rank 8 alpha 32 on {words}")
    assert plan.lora is not None and (plan.lora.ops, plan.lora.alpha) == (ops, 32)
    assert {op.name for kind in plan.model.blocks for op in plan.model.ops[kind] if op.update} == set(ops)


@pytest.mark.parametrize(
    ("sentence", "left"),
    [
        ("freeze model except head", {"output.weight"}),
        ("freeze blocks", {"tok_embeddings.weight", "norm.weight", "output.weight"}),
        ("freeze model except norms", {*layer("attention_norm.weight", "ffn_norm.weight"), "norm.weight"}),
        ("freeze model except ffn.down", layer("feed_forward.w2.weight")),
        ("freeze attention, ffn, embedding, head", {"norm.weight"}),
    ],
)
def test_parts_are_frozen_by_name(tmp_path: Path, sentence: str, left: set[str]) -> None:
    assert trained(tuned(tmp_path, sentence).model) == left


def test_an_update_trains_beside_what_is_kept_out_of_freeze(tmp_path: Path) -> None:
    model = tuned(tmp_path, "lora rank 4 on attention.v", "freeze embedding except norms").model
    updates = layer("attention.wv.lora_a", "attention.wv.lora_b")
    assert trained(model) == {*updates, *layer("attention_norm.weight", "ffn_norm.weight"), "norm.weight"}


def test_the_first_layer_makes_no_gradients_before_its_first_update(tmp_path: Path) -> None:
    """Nothing lies before it, so its norm and the inputs of its projections have none."""
    model = tuned(tmp_path, "lora rank 4 on attention.out").model
    assert model.kinds == ("opening_block", *["block"] * 31)
    without = {op.name for op in model.ops["opening_block"] if not op.has_backward}
    assert without == {
        *("attention.norm", "attention.q", "attention.k", "attention.v"),
        *("attention.rope_q", "attention.rope_k", "attention.core"),
    }
    assert all(op.has_backward for op in model.ops["block"])
    assert not any(op.has_backward for op in model.ops["first"]) and all(op.has_backward for op in model.ops["last"])


def test_a_trained_embedding_leaves_one_kind_of_block(tmp_path: Path) -> None:
    model = tuned(tmp_path, "freeze blocks").model
    assert model.blocks == ("block",) and all(op.has_backward for op in model.ops["block"])


def test_a_frozen_weight_does_not_keep_its_input(tmp_path: Path) -> None:
    ops = {op.name: op for op in tuned(tmp_path, "lora rank 4 on attention.q").model.ops["block"]}
    assert ops["attention.q"].saves == ("attention.in", "attention.q.rank")
    assert ops["attention.v"].saves == () and ops["ffn.down"].saves == ()
    assert ops["ffn.norm"].saves == ("hidden.mid",)


def test_the_compiled_plan_is_read_back(tmp_path: Path) -> None:
    plan = tuned(tmp_path, "lora rank 4 alpha 8 on heads", "freeze model except head")
    assert read_plan(json.loads(json.dumps(plan.to_json()))) == plan
    plain = tuned(tmp_path)
    assert not {"freeze", "lora"} & {*plain.to_json()} and "frozen" not in plain.canonical()


@pytest.mark.parametrize(
    ("sentence", "code"),
    [
        ("freeze model", "E0119"),
        ("freeze heads", "E0108"),
        ("freeze blocks except layers 0..3", "E0109"),
        ("lora rank 4 on norm", "E0108"),
        ("lora rank 4 on vocab", "E0108"),
        ("lora rank 4096 on attention.q", "E0120"),
        ("lora rank 4 on heads\nlora rank 4 on ffn", "E0107"),
    ],
)
def test_mistakes_have_their_codes(tmp_path: Path, sentence: str, code: str) -> None:
    assert code in codes(tmp_path, f"{HEAD}{sentence}\n{TAIL}")


def test_experts_take_no_update(tmp_path: Path) -> None:
    text = HEAD.replace("llama3_8b", "mixtral_8x7b") + "lora rank 4 on {}\n" + TAIL
    assert "E0120" in codes(tmp_path, text.format("experts"))
    assert "E0120" not in codes(tmp_path, text.format("attention"))
