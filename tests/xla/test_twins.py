"""The torch module and the JAX function are one model: names, shapes, logits, loss, gradients."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from planc.trainer.run.launch import run

pytest.importorskip("torch", reason="the twin is a torch module")

TWINS = Path(__file__).with_name("twins.py")
DENSE = ("llama_micro", "llama_tiny", "mistral_micro", "qwen3_micro")
MODELS = (*DENSE, "mixtral_micro", "qwen3_moe_micro", "deepseek_micro")


@pytest.mark.launch
@pytest.mark.parametrize("model", MODELS)
def test_the_twins_agree(model: str) -> None:
    done = run([sys.executable, str(TWINS), model], 1, timeout_s=600)
    assert done.ok, done.outputs[0]
    found = json.loads(done.outputs[0].splitlines()[-1])
    assert found["missing"] == [] and found["shapes"] and found["dead"] == []
    assert found["picks"], "the routers chose other experts"
    assert max(found["logits"], found["loss"], found["gradients"]) <= 1e-5, found
