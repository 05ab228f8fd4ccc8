"""Published Hugging Face configs give the catalog's models; other models are refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planc.catalog import build_model, config_types
from planc.catalog.parts.decoders import DECODERS
from planc.ir.model import Model
from planc.ir.references import model_inconsistencies
from tests.catalog.published import CONFIGS
from tests.plans import BODY, HEAD, codes, found, plan_of

FACTS = ("sizes", "params", "tensors", "ops", "runs", "top_k", "tied", "rope_theta", "norm_eps")


def read(config: dict[str, Any]) -> tuple[Model, tuple[str, ...]]:
    model, unused = config_types()[config["model_type"]].read_config("config", config)
    return model, unused


SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4, "head_dim": 16,
    "intermediate_size": 184, "vocab_size": 136, "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8,
    "moe_intermediate_size": 52, "num_experts_per_tok": 2, "moe_topk": 2, "shared_expert_intermediate_size": 40,
}  # fmt: skip
"""The sizes of a config of any decoder."""


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {**CONFIGS[name], **fields}


def without(name: str, *fields: str) -> dict[str, Any]:
    return {k: v for k, v in CONFIGS[name].items() if k not in fields}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_is_the_model_of_the_catalog(name: str) -> None:
    model, known = read(CONFIGS[name])[0], build_model(name)
    assert {f: getattr(model, f) for f in FACTS} == {f: getattr(known, f) for f in FACTS}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_is_used_or_named(name: str) -> None:
    """A field that is not named must change the model, or the reading of it, when it is garbage."""
    config = CONFIGS[name]
    _, unused = read(config)
    assert "vocab_size" not in unused
    for field in set(config) - set(unused) - {"model_type"}:
        with pytest.raises(ValueError, match=r"\w"):
            read({**config, field: ["garbage"]})
    for field in unused:
        if "." not in field:
            assert read({**config, field: ["garbage"]})[0] == read(config)[0], field


@pytest.mark.parametrize("kind", config_types())
def test_a_config_without_sizes_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        read({"model_type": kind})


def test_absent_fields_have_the_defaults_of_their_class() -> None:
    """A head's width is 128 for Qwen3 and 64 for gpt-oss, and Mistral has a window unless it says null."""
    assert read(without("qwen3_0_6b", "head_dim"))[0].sizes["head_dim"] == 128
    assert read(without("gpt_oss_20b", "head_dim", "layer_types"))[0] == read(CONFIGS["gpt_oss_20b"])[0]
    assert read(without("llama3_2_1b", "head_dim"))[0].sizes["head_dim"] == 64
    window = {c: _window(read(c_)[0]) for c, c_ in {
        "absent": without("mistral_7b", "sliding_window"), "null": changed("mistral_7b", sliding_window=None),
    }.items()}  # fmt: skip
    assert window == {"absent": 4096, "null": 0}
    assert read(without("mpt_7b", "expansion_ratio"))[0].tied


def _window(model: Model) -> int:
    return next(op.window for op in model.ops["block"] if op.kind == "attention")


def test_a_field_may_go_by_its_other_name() -> None:
    """`attribute_map` of the configuration classes goes in both directions."""
    moe = {**without("qwen3_30b_a3b", "num_experts"), "num_local_experts": 64}
    assert read(moe)[0].sizes["experts"] == 64
    mixtral = {**without("mixtral_8x7b", "num_local_experts"), "num_experts": 4}
    assert read(mixtral)[0].sizes["experts"] == 4
    mpt = {**without("mpt_7b", "n_layers"), "num_hidden_layers": 2}
    assert read(mpt)[0].layers == 2
    with pytest.raises(ValueError, match="one field under two names"):
        read(changed("gpt_oss_20b", experts_per_token=2))


def test_rotary_settings_may_be_old_or_new() -> None:
    old = read(CONFIGS["deepseek_v3"])[0]
    scaling = CONFIGS["deepseek_v3"]["rope_scaling"]
    renamed = {**{k: v for k, v in scaling.items() if k != "type"}, "rope_type": "yarn", "rope_theta": 10000.0}
    new = read({**without("deepseek_v3", "rope_scaling", "rope_theta"), "rope_parameters": renamed})[0]
    assert new == old and old.rope_scaling["rope_type"] == "yarn" and old.rope_scaling["factor"] == 40
    plain = read(changed("llama3_8b", rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 7.0}))[0]
    assert (plain.rope_theta, plain.rope_scaling) == (7.0, {})


def test_layers_without_experts_are_dense() -> None:
    every_other = read(changed("qwen3_30b_a3b", decoder_sparse_step=2))[0]
    assert (every_other.layers_of("dense"), every_other.layers_of("block")) == (24, 24)
    assert every_other.runs[0].section == "dense" and every_other.sizes["ffn"] == 6144
    listed = read(changed("qwen3_30b_a3b", mlp_only_layers=[0, 1]))[0]
    assert [(run.section, run.layers) for run in listed.runs] == [("dense", 2), ("block", 46)]


def test_qwen2_has_biases_of_queries_keys_and_values_alone() -> None:
    biased = {param.name for param in build_model("qwen2_5_7b").params if param.name.endswith(".bias")}
    assert biased == {f"layers.*.attention.{one}.bias" for one in ("wq", "wk", "wv")}


def test_qwen3_may_slide() -> None:
    model = read(changed("qwen3_0_6b", use_sliding_window=True, sliding_window=512, max_window_layers=20))[0]
    assert [(run.section, run.layers) for run in model.runs] == [("block", 20), ("sliding", 8)]
    kinds = ["full_attention", "sliding_attention"] * 14
    assert (
        len(read(changed("qwen3_0_6b", use_sliding_window=True, sliding_window=512, layer_types=kinds))[0].runs) == 28
    )


def test_learned_positions_of_mpt() -> None:
    plain = {**CONFIGS["mpt_7b"]["attn_config"], "alibi": False}
    model = read(changed("mpt_7b", attn_config=plain))[0]
    assert model.sizes["positions"] == 2048 and "pos_embeddings.weight" in model.param


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("llama3_8b", {"attention_bias": True}, "attention_bias = True"),
        ("llama3_8b", {"tie_word_embeddings": 1}, "neither true nor false"),
        ("llama3_8b", {"num_attention_heads": 33, "head_dim": None}, "no multiple of 33"),
        ("llama3_8b", {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rotary"),
        ("llama3_8b", {"rope_scaling": {"rope_type": "llama3", "factor": float("inf")}}, "rotary"),
        ("llama3_8b", {"num_hidden_layers": 10**9}, "more than"),
        ("mistral_7b", {"sliding_window": -1}, "at least 0"),
        ("mistral_7b", {"layer_types": ["full_attention"] * 32}, "layer_types"),
        ("mixtral_8x7b", {"num_experts_per_tok": 9}, "9 experts, and there are 8"),
        ("mixtral_8x7b", {"num_experts": 4}, "two names"),
        ("qwen2_5_7b", {"hidden_act": "gelu"}, "hidden_act"),
        ("qwen3_0_6b", {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["x"] * 28}, "layer_types"),
        ("qwen3_30b_a3b", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3_30b_a3b", {"mlp_only_layers": [True]}, "mlp_only_layers"),
        ("qwen3_30b_a3b", {"decoder_sparse_step": 64}, "no layer"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek_v3", {"num_key_value_heads": 8}, "make it 128"),
        ("deepseek_v3", {"first_k_dense_replace": 61}, "at least 62"),
        ("gpt_oss_20b", {"layer_types": ["full_attention"]}, "24 times"),
        ("gpt_oss_20b", {"attention_bias": False}, "attention_bias"),
        ("mpt_7b", {"attn_config": {"attn_type": "grouped_query_attention"}}, "attn_type"),
        ("mpt_7b", {"attn_config": 7}, "not an object"),
        ("mpt_7b", {"no_bias": False}, "no_bias"),
    ],
    ids=str,
)
def test_other_models_are_refused_in_words(name: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(changed(name, **fields))


TEXT = HEAD.replace("model     llama3_8b", 'model     from "config.json"') + BODY


@pytest.mark.parametrize(
    ("kind", "nested"), [("seen", CONFIGS["qwen3_0_6b"]), ("gemma3", {**SMALL, "num_key_value_heads": 8})]
)
def test_of_a_model_of_text_and_pictures_the_text_is_read(tmp_path: Path, kind: str, nested: dict[str, Any]) -> None:
    config = {"model_type": kind, "vision_config": {}, "text_config": nested, "_name_or_path": "its/own-name"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert any(n.code == "N0113" and "`text_config` alone" in n.message for n in found(tmp_path, TEXT))
    read_as = {"model_type": {"gemma3": "gemma3_text"}.get(kind), **nested}
    model = plan_of(tmp_path, TEXT).model
    assert (model.name, model.parameters) == ("own-name", read(read_as)[0].parameters)


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders_answer_garbage_in_words(kind: str) -> None:
    config = {"model_type": kind, **SMALL}
    fields = {*config, *read(config)[1], *DECODERS[kind].biases, "layer_types", "rope_parameters", "head_dim"}
    fields |= {"no_rope_layers", "sliding_window", "sliding_window_pattern", "mlp_only_layers", "n_shared_experts"}
    for fields_ in ({**config, field: value} for field in sorted(fields - {"model_type"}) for value in GARBAGE):
        try:
            model, _ = read(fields_)
        except ValueError:
            continue
        assert model.parameters > 0 and not [*model_inconsistencies(model)], fields_


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("gemma2", ("sliding", "block") * 2),
        ("cohere2", ("sliding", "sliding", "sliding", "nope")),
        ("smollm3", ("block", "block", "block", "nope")),
        ("glm4_moe", ("dense", "block", "block", "block")),
        ("ministral", ("block",) * 4),
    ],
)
def test_layers_are_of_the_kinds_that_a_config_says(kind: str, kinds: tuple[str, ...]) -> None:
    model, _ = read({"model_type": kind, **SMALL})
    assert model.kinds == kinds


def test_a_bias_before_a_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="a bias before the norms"):
        read({"model_type": "gemma2", **SMALL, "attention_bias": True})


def test_sizes_that_make_no_model_are_a_diagnostic(tmp_path: Path) -> None:
    text = HEAD.replace("llama3_8b", "deepseek_v3(layers = 2)") + BODY
    assert codes(tmp_path, text) == ["E0103"]


GARBAGE: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**13, float("inf"), float("nan"), "x", [], [1], [[]], {}, {"rope_type": []},
    {"a": {}}, {"rope_type": "x", "a": float("nan")},
)  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_garbage_is_read_or_refused_and_never_a_crash(name: str) -> None:
    config, inner = CONFIGS[name], CONFIGS[name].get("attn_config", {})
    hostile = [{**config, field: value} for field in (*config, "rope_parameters", "head_dim") for value in GARBAGE]
    hostile += [changed(name, attn_config={**inner, field: value}) for field in inner for value in GARBAGE]
    refused = 0
    for fields in hostile:
        if fields["model_type"] != config["model_type"]:
            continue
        try:
            assert read(fields)[0].parameters > 0
        except ValueError as error:
            refused += bool(str(error))
    assert refused > len(config)
