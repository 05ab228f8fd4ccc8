"""Weights of transformers: in, one step, out, with equal logits; and folders that are not the model are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import planc
from planc.backends.cuda.runtime.hf_adapter import checkpoint_name
from planc.catalog import build_model
from planc.diag import PlanError, Span
from planc.trainer.checkpoint.hugging_face import INDEX, exported, imported
from planc.trainer.run.initial_weights import initial, names
from tests.rows import rows_of

MODEL = build_model("llama_micro")
SPAN = Span("run.toml", 1, 1, 1, 1)
WORKER = Path(__file__).with_name("hugging_face_round.py")


@pytest.mark.parametrize(
    "kind", ["Mistral", pytest.param("Llama", marks=pytest.mark.long), pytest.param("Qwen3", marks=pytest.mark.long)]
)
@pytest.mark.launch
def test_logits_are_equal_before_and_after_a_step(kind: str) -> None:
    pytest.importorskip("transformers")
    """Models differ from the defaults of their readers: in the base of positions, the window, the tied head."""
    done = subprocess.run([sys.executable, str(WORKER), kind], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    row = rows_of(done.stdout)[0]
    assert min(row["shards"]) > 1, "the index is used"
    assert row["before"] <= 1e-5
    assert row["after"] <= 1e-5
    assert row["moved"] > 1e-3, "the step did something"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    draw = initial(MODEL, 0)
    exported(MODEL, ((name, draw(name, shape)) for name, shape in names(MODEL)), tmp_path / "hf", most_bytes=100_000)
    return tmp_path / "hf"


def test_what_is_written_is_read_back(theirs: Path) -> None:
    read, draw = imported(MODEL, theirs, SPAN), initial(MODEL, 0)
    for name, shape in names(MODEL):
        assert np.array_equal(read(name, shape), draw(name, shape))
    index = json.loads((theirs / INDEX).read_text())
    assert index["weight_map"].keys() == {checkpoint_name(name) for name, _ in names(MODEL)}
    assert index["metadata"]["total_size"] == 4 * MODEL.parameters
    assert len(set(index["weight_map"].values())) > 3


def test_bfloat16_is_read_as_it_is(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save

    values = {checkpoint_name(n): torch.randn(shape).bfloat16() for n, shape in names(MODEL)}
    save(values, tmp_path / "model.safetensors")
    read = imported(MODEL, tmp_path, SPAN)
    name, shape = "layers.1.feed_forward.w2.weight", MODEL.shape(MODEL.param["layers.*.feed_forward.w2.weight"])
    assert np.array_equal(read(name, shape), values[checkpoint_name(name)].float().numpy())


def changed(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    """The tensors of one file, changed."""

    def apply(folder: Path) -> None:
        path = sorted(folder.glob("*.safetensors"))[0]
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return apply


def pickled(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")


def shortened(folder: Path) -> None:
    path = sorted(folder.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-1])


def emptied(folder: Path) -> None:
    (folder / INDEX).write_text("[]")


EMBEDDING = "model.embed_tokens.weight"
WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickles": (pickled, "E1030: .* only pickles (.*), which run code"),
    "cut short": (shortened, "E1030: .* is cut short"),
    "no file": (lambda f: sorted(f.glob("*.safetensors"))[0].unlink(), "E1030"),
    "an index that is none": (emptied, "E1030"),
    "a name too few": (changed(lambda t: t.pop(EMBEDDING)), f"E1031: .* {EMBEDDING} is not there"),
    "a name too many": (
        changed(lambda t: t.update(extra=np.zeros(3, np.float32))),
        "E1031: .* extra is not in the model",
    ),
    "a shape": (
        changed(lambda t: t.update({EMBEDDING: t[EMBEDDING][:-1].copy()})),
        "E1031: .* is 133 x 64 there and 134 x 64 here",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_folder_that_is_not_the_model_is_refused(theirs: Path, case: str) -> None:
    hurt, says = WRONG[case]
    hurt(theirs)
    with pytest.raises(PlanError) as raised:
        imported(MODEL, theirs, SPAN)
    (found,) = raised.value.diagnostics
    import re

    assert re.match(says.replace(": ", " ", 1), f"{found.code} {found.message}"), found.message


def test_a_family_without_a_table_is_refused(theirs: Path) -> None:
    model = planc.load(Path(__file__).resolve().parents[2] / "plans/field/mpt_7b_h100_fsdp.plan").model
    with pytest.raises(PlanError, match="no table of names for the mpt family"):
        imported(model, theirs, SPAN)
