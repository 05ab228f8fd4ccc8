"""The torch module and the JAX function are one model: names, shapes, logits, loss, gradients."""

from __future__ import annotations

import pytest

from tests.launches import Row, case, tier

pytest.importorskip("torch", reason="the twin is a torch module")

DENSE = ("llama_micro", "llama_tiny", "mistral_micro", "qwen3_micro")
MODELS = (*DENSE, "mixtral_micro", "qwen3_moe_micro", "deepseek_micro")
QUICK = ("llama_micro",)


@pytest.mark.parametrize("model", [case("twins", m, *tier(m, (), QUICK)) for m in MODELS])
def test_the_twins_agree(model: str, row: Row) -> None:
    assert row["missing"] == [] and row["shapes"] and row["dead"] == []
    assert row["picks"], "the routers chose other experts"
    assert max(row["logits"], row["loss"], row["gradients"]) <= 1e-5, row
