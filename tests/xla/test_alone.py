"""An emitted file needs jax, optax and nothing of planc: a user's own loop and model, against one device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from planc.backends.xla.emit.program import emit
from planc.trainer.run.launch import run
from tests.plans import propagated
from tests.xla.cases import plan_of, sharded

ALONE = Path(__file__).with_name("alone.py")


@pytest.mark.launch
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) for n in ("fsdp_tp_sp", "zero1_tp_sp")])
def test_a_users_own_model_trains_as_on_one_device(name: str, tmp_path: Path) -> None:
    path = tmp_path / "emitted.py"
    path.write_text(emit(sharded(name)))
    done = run([sys.executable, str(ALONE), str(path)], 1, timeout_s=600)
    assert done.ok, done.outputs[0]
    found = json.loads(done.outputs[0].splitlines()[-1])
    assert found["loss"] <= 1e-5 and found["parameters"] <= 1e-5, found
    assert found["fell"] > 0.01, "the model must learn for the comparison to mean something"
    assert found["w1"] == {"fsdp_tp_sp": "P('tp', 'fsdp')", "zero1_tp_sp": "P('tp', None)"}[name]


COPIES = {
    "outside": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
    "inside": ("a 2 > b 2", "shard batch over a, b", "store params, grads, optimizer over a"),
}


@pytest.mark.launch
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) for n in ("inside", "outside")])
def test_gradients_summed_over_copies_last_are_those_of_one_device(name: str, tmp_path: Path) -> None:
    """The program for TPU 7x, on virtual devices: copies that are the mesh's outer axis, and its inner one."""
    text = emit(propagated(plan_of(name, *COPIES[name], "attention.core as unfused", cluster="tpu_7x(2x1x1)")))
    assert "def _apart" in text and ("jnp.moveaxis(x" in text) == (name == "inside")
    path = tmp_path / "emitted.py"
    path.write_text(text)
    done = run([sys.executable, str(ALONE), str(path)], 1, timeout_s=600)
    assert done.ok, done.outputs[0]
    found = json.loads(done.outputs[0].splitlines()[-1])
    assert found["loss"] <= 1e-5 and found["parameters"] <= 1e-5, found
    assert found["fell"] > 0.01, "the model must learn for the comparison to mean something"
