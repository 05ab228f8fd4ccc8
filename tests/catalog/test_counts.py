"""The catalog's sizes are the published ones: parameters counted from the op graphs, exactly where all are counted."""

from __future__ import annotations

import pytest

from planc.catalog import build_model
from tests.catalog.published import ACTIVE, HUB, MEGATRON, PARAMETERS


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_published(name: str) -> None:
    published, source = PARAMETERS[name]
    assert build_model(name).parameters == pytest.approx(published, rel=0 if source == HUB else 1e-3)


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_models_have_the_parameters_of_the_table(name: str) -> None:
    """The table prints one digit behind the point."""
    assert round(build_model(name).parameters / 1e9, 1) == MEGATRON[name]


@pytest.mark.parametrize("name", ["gpt3_6_7b", "gpt3_13b", "gpt3_175b", "megatron_22b", "megatron_175b"])
def test_gpt_models_have_the_parameters_of_the_formula(name: str) -> None:
    """Narayanan et al. 2021, equation 2, for a model with 2048 positions."""
    model = build_model(name)
    layers, embed, vocab = (model.sizes[d] for d in ("layers", "embed", "vocab"))
    published = 12 * layers * embed**2 * (1 + 13 / (12 * embed) + (vocab + 2048) / (12 * layers * embed))
    assert model.parameters == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize(("name", "billions"), [("gpt3_6_7b", 6.7), ("gpt3_13b", 13.0), ("gpt3_175b", 175.0)])
def test_gpt3_is_near_its_rounded_name(name: str, billions: float) -> None:
    """Brown et al. 2020, table 2.1. Its 13.0 and 175.0 are no count that its dims give."""
    assert build_model(name).parameters == pytest.approx(billions * 1e9, rel=0.012)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_published(name: str) -> None:
    """They are published with two or three digits."""
    model, (published, with_embedding) = build_model(name), ACTIVE[name]
    embedding = 0 if with_embedding else model.elements(model.param["tok_embeddings.weight"])
    assert model.active_parameters - embedding == pytest.approx(published, rel=0.02)


def test_nemotron_3_super_is_near_its_rounded_name() -> None:
    """Without its modules for further tokens."""
    assert build_model("nemotron_3_super").parameters == pytest.approx(120e9, rel=0.01)


def test_modules_for_further_tokens_are_counted_where_asked_for() -> None:
    """DeepSeek-V3's is a layer, a projection of two hidden states to one and three norms beside it; the embedding and
    the head are the model's. 14 billion with these two (DeepSeek-AI 2024, model card)."""
    main, ahead = build_model("deepseek_v3"), build_model("deepseek_v3", {"mtp_layers": 1})
    layer = sum(main.elements(p) for p in main.params if "block" in p.sections)
    own = layer + 2 * 7168**2 + 3 * 7168
    assert ahead.parameters - main.parameters == own and ahead.layers == 62
    shared = [ahead.param[f"{name}.weight"] for name in ("tok_embeddings", "output")]
    assert own + sum(map(ahead.elements, shared)) == pytest.approx(14e9, rel=0.04)
    assert [ahead.copies(p) for p in shared] == [1, 1]


def test_only_families_with_such_modules_have_them() -> None:
    for name in ("llama3_8b", "nemotron_h_8b"):
        with pytest.raises(ValueError, match="no modules for further tokens"):
            build_model(name, {"mtp_layers": 1})


def test_a_dense_model_uses_all_its_parameters() -> None:
    assert build_model("qwen3_8b").active_parameters == build_model("qwen3_8b").parameters
