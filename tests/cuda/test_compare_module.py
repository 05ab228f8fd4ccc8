"""A module is compared with the plan's model before it is divided; no process group is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import planc
from planc.ir.program import Program

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 182,
    "vocab_size": 134,
    "tie_word_embeddings": False,
}


def program(folder: Path, model: str) -> Program:
    path = folder / "own.plan"
    rest = "batch 16 x 24 tokens microbatch 2\ncluster 4 x cpu_local\nmesh fsdp 4\ncompute fp32\nuse fsdp over fsdp"
    path.write_text(f"plan own\nmodel {model}\n{rest}\n")
    return planc.lower(path, target="cuda")


def causal(kind: str, **changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes})
    with torch.device("meta"):
        return getattr(transformers, f"{kind}ForCausalLM")(config)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": 3}, "layers: 3 found, 2 expected"),
        ({"intermediate_size": 180}, "model.layers.*.mlp.gate_proj.weight: 180 x 64 found, 182 x 64 expected"),
        ({"num_attention_heads": 4}, "num_attention_heads: 4 found, 8 expected"),
        ({"attention_bias": True}, "model.layers.*.self_attn.q_proj.bias: 64 found, none expected"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: True found, False expected"),
    ],
)
def test_what_differs_is_said_with_its_module(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    with pytest.raises(planc.PlanError) as caught:
        program(tmp_path, "llama_micro(layers = 2)").parallelize(causal("Llama", **changes))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E1205"
    assert diagnostic.message.startswith("LlamaForCausalLM is not llama_micro, the plan's model: ")
    assert found in diagnostic.message


def test_a_missing_parameter_is_named(tmp_path: Path) -> None:
    model = causal("Llama")
    with pytest.raises(planc.PlanError, match=r"layers\.\*\.attention\.q_norm\.weight: not found, 16 expected"):
        program(tmp_path, "qwen3_micro(layers = 2)").parallelize(model)


def test_another_family_is_compared_by_its_names(tmp_path: Path) -> None:
    with pytest.raises(planc.PlanError, match=r"post_feedforward_layernorm\.weight: 64 found, none expected"):
        program(tmp_path, "llama_micro").parallelize(causal("Olmo2"))


def test_a_module_of_ones_own_is_compared_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from planc.backends.cuda.models.llama import build

    four, two = (program(tmp_path, f"llama_micro(layers = {layers})") for layers in (4, 2))
    with pytest.raises(planc.PlanError, match="layers: 4 found, 2 expected"):
        two.parallelize(build(four.plan.model))


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen3", "Mixtral", "Qwen3Moe"])
def test_the_models_own_config_has_no_difference(tmp_path: Path, kind: str) -> None:
    from planc.backends.cuda.runtime.compare_module import differences
    from planc.backends.cuda.runtime.traced.read import roles_of_module

    moe = {"moe_intermediate_size": 52, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    model = causal(kind, **(moe if kind == "Qwen3Moe" else {}))
    model.config.to_json_file(tmp_path / "config.json")
    expected = program(tmp_path, 'from "config.json"').plan.model
    assert list(differences(model, expected, roles_of_module(model))) == []
