"""The torch module and the JAX function are one model: names, shapes, logits, loss, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.launches import Row, case, tier

pytest.importorskip("torch", reason="the twin is a torch module")

DENSE = ("llama_micro", "llama_micro_tied", "llama_tiny", "mistral_micro", "qwen3_micro")
MODELS = (*DENSE, "mixtral_micro", "qwen3_moe_micro", "deepseek_micro")


@pytest.mark.parametrize("model", [case("twins", m, *tier(m, MODELS, ())) for m in MODELS])
def test_the_twins_agree(model: str, row: Row) -> None:
    assert row["missing"] == [] and row["shapes"] and row["dead"] == []
    assert row["picks"], "the routers chose other experts"
    assert max(row["logits"], row["loss"], row["gradients"]) <= 1e-5, row


SCALINGS: tuple[dict[str, Any], ...] = (
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"])
def test_positions_are_scaled_alike(scaling: dict[str, Any]) -> None:
    """`test_hugging_face.py` compares the torch twin with transformers."""
    import jax.numpy as jnp
    import torch

    from planc.backends.cuda.models.llama import Rotary
    from planc.backends.xla.models.llama import rotary_angles

    cos, _ = Rotary(32, 5e3, scaling)._rotations(48, torch.device("cpu"))
    plain, _ = Rotary(32, 5e3)._rotations(48, torch.device("cpu"))
    ours = np.cos(np.asarray(rotary_angles(jnp.arange(48), 32, 5e3, scaling)))
    assert np.abs(ours - cos[:, 0].numpy()).max() < 1e-5
    assert np.abs(ours - plain[:, 0].numpy()).max() > 0.1
