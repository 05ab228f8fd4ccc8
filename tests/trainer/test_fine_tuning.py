"""Fine-tuning by the trainer: from given weights, saved, gone on with, and written back with updates added."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import planc
from planc.catalog import build_model
from planc.diag import Span
from planc.trainer.checkpoint.directory import read_manifest
from planc.trainer.checkpoint.export_weights import export
from planc.trainer.checkpoint.hugging_face import exported, imported, own_names
from planc.trainer.checkpoint.tensor_files import Reader
from planc.trainer.preset.embed import embed
from planc.trainer.receipt.receipt import read_receipt
from planc.trainer.run import train as run
from planc.trainer.run.initial_weights import initial, names

MODEL = build_model("llama_tiny")
SPAN = Span("run.toml", 1, 1, 1, 1)
PLAN = """plan tuned
model     llama_tiny
lora      rank 4 alpha 8 on heads, ffn
batch     4 x 32 tokens microbatch 2
cluster   2 x cpu_local
mesh      fsdp 2
use       fsdp over fsdp
compute   fp32
"""
PRESET = """[train]
steps = 4
lr = 1e-2
warmup_steps = 1
weights = "given"
[data]
source = "python-stdlib"
max_bytes = 200000
[checkpoint]
folder = "saved"
every_steps = 2
"""


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    """A preset that fine-tunes given weights on two processes."""
    draw = initial(MODEL, 7)
    exported(MODEL, ((name, draw(name, shape)) for name, shape in names(MODEL)), tmp_path / "given")
    (tmp_path / "tuned.plan").write_text(PLAN)
    (tmp_path / "run.toml").write_text(PRESET)
    embed(planc.load(tmp_path / "tuned.plan"), tmp_path / "tuned.plan", tmp_path / "run.toml")
    return tmp_path / "run.toml"


def test_weights_are_given_and_updates_are_drawn(preset: Path) -> None:
    model = planc.load(preset.parent / "tuned.plan").model
    first, given, drawn = imported(model, preset.parent / "given", SPAN, 3), initial(MODEL, 7), initial(model, 3)
    for name, shape in names(model):
        update = "lora" in name
        assert np.array_equal(first(name, shape), (drawn if update else given)(name, shape)), name
        assert not (name.endswith("lora_b") and first(name, shape).any())
    assert [name for name, _ in own_names(model)] == [name for name, _ in names(MODEL)]


@pytest.mark.launch
@pytest.mark.long
def test_a_run_is_saved_gone_on_with_and_written_back(preset: Path) -> None:
    folder = preset.parent
    run.train(preset, "cuda", receipt=folder / "whole.json")
    model = planc.load(folder / "tuned.plan").model
    saved = read_manifest(folder / "saved" / "step-00000004").tensors
    frozen = {name for name, _ in own_names(model)}
    assert {n.partition(".")[2] for n in saved if n.startswith("exp_avg.")} == {n for n, _ in names(model)} - frozen

    export(preset, folder / "written")
    reader, given = Reader(folder / "saved" / "step-00000004", saved), initial(MODEL, 7)
    read = imported(MODEL, folder / "written", SPAN)
    moved = 0.0
    for name, shape in names(MODEL):
        module, value = name.removesuffix(".weight"), given(name, shape)
        if f"params.{module}.lora_a" in saved:
            a, b = (reader(f"params.{module}.lora_{m}", (slice(None), slice(None))) for m in "ab")
            moved = max(moved, float(np.abs(b @ a).max()))
            value = value + 2 * (b @ a)
        assert np.allclose(read(name, shape), value, atol=1e-6), name
    assert moved > 1e-4, "updates were trained"

    again = folder / "again.json"
    run.train(preset, "cuda", receipt=again, resume=2)
    one, other = (read_receipt(path) for path in (folder / "whole.json", again))
    assert one.losses == other.losses and one.grad_norms == other.grad_norms
