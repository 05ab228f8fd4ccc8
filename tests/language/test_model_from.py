"""Models from Hugging Face configs: every field used or named, other models refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from planc.catalog import build_model
from tests.plans import BODY, HEAD, codes, found, plan_of

LLAMA3_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
TEXT = HEAD.replace("model     llama3_8b", 'model     from "config.json"') + BODY


def written(folder: Path, config: Any) -> str:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return TEXT


def test_a_config_is_the_model_of_the_catalog(tmp_path: Path) -> None:
    model, known = plan_of(tmp_path, written(tmp_path, LLAMA3_8B)).model, build_model("llama3_8b")
    assert (model.sizes, model.parameters, model.rope_theta) == (known.sizes, 8_030_261_248, 5e5)


def test_unused_fields_are_named(tmp_path: Path) -> None:
    (note,) = found(tmp_path, written(tmp_path, {**LLAMA3_8B, "bos_token_id": 1, "torch_dtype": "bfloat16"}))
    assert note.code == "N0113" and "bos_token_id, torch_dtype" in note.message


def test_heads_may_be_wider_than_the_model(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written(tmp_path, {**LLAMA3_8B, "head_dim": 256}))
    assert plan.model.shape(plan.model.param["layers.*.attention.wq.weight"]) == (8192, 4096)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mamba"},
        {"model_type": 7},
        {"tie_word_embeddings": 1},
        {"attention_bias": True},
        {"num_hidden_layers": "32"},
        {"num_hidden_layers": -1},
        {"vocab_size": True},
        {"hidden_size": None},
        {"hidden_act": "gelu"},
        {"sliding_window": 4096},
    ],
    ids=str,
)
def test_other_models_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert codes(tmp_path, written(tmp_path, {**LLAMA3_8B, **change})) == ["E0112"]


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '"x"'], ids=["empty", "list", "open", "deep", "string"])
def test_what_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    assert codes(tmp_path, written(tmp_path, text)) == ["E0112"]


@pytest.mark.parametrize(
    ("name", "code"), [("../config.json", "E0111"), ("/etc/passwd", "E0111"), ("none.json", "E0104")]
)
def test_configs_stay_in_the_folder(tmp_path: Path, name: str, code: str) -> None:
    assert codes(tmp_path, TEXT.replace("config.json", name)) == [code]


def test_a_model_is_given_once(tmp_path: Path) -> None:
    text = written(tmp_path, LLAMA3_8B) + "model llama3_8b\n"
    assert codes(tmp_path, text) == ["E0107"]
