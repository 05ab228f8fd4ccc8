"""An emitted file needs jax, optax and nothing of planc: a user's own loop and model, against one device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from planc.backends.xla.emit.program import emit
from planc.trainer.run.launch import run
from tests.xla.cases import sharded

ALONE = Path(__file__).with_name("alone.py")


@pytest.mark.launch
@pytest.mark.parametrize("name", ["fsdp_tp_sp", pytest.param("zero1_tp_sp", marks=pytest.mark.long)])
def test_a_users_own_model_trains_as_on_one_device(name: str, tmp_path: Path) -> None:
    path = tmp_path / "emitted.py"
    path.write_text(emit(sharded(name)))
    done = run([sys.executable, str(ALONE), str(path)], 1, timeout_s=600)
    assert done.ok, done.outputs[0]
    found = json.loads(done.outputs[0].splitlines()[-1])
    assert found["loss"] <= 1e-5 and found["parameters"] <= 1e-5, found
    assert found["fell"] > 0.01, "the model must learn for the comparison to mean something"
    assert found["w1"] == {"fsdp_tp_sp": "P('tp', 'fsdp')", "zero1_tp_sp": "P('tp', None)"}[name]
