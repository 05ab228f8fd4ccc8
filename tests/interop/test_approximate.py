"""Approximate imports: what no sentence says is left out with a warning that says so; the exact import refuses it."""

from dataclasses import replace
from pathlib import Path

import pytest

from planc.catalog import build_model
from planc.cli import main
from planc.interop.importing import Imported, import_files
from planc.interop.setup import DecoderShape
from planc.interop.shape import nearest_words
from planc.interop.systems import systems
from planc.interop.values import Options
from planc.interop.words import read_model
from planc.ir.model import Model
from tests.interop.scripts import SCRIPT

FIELDS = [field for field in systems()["megatron"].fields if field.off]


def imported(folder: Path, more: str, *, approximate: bool = True, text: str = SCRIPT) -> Imported:
    (folder / "run.sh").write_text(text.replace("--lr 1e-4", more))
    options = Options(cluster="1 x h100_node", devices=8, folder=folder, approximate=approximate)
    return import_files([folder / "run.sh"], options)


def sentences(found: Imported) -> list[str]:
    lines = [line.partition("#")[0].split() for line in found.text.split("\n")]
    return [" ".join(words) for words in lines if words]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_field_that_is_left_out_is_said_with_what_is_off(field, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    flag = f"--{field.name}" + ("" if field.default is False else " 3")
    found = imported(tmp_path, flag)
    assert [d.message for d in found.diagnostics if d.code == "W1310" and d.message.endswith(field.off)]
    assert found.inexact == (field.name,) and "approximate: 1 field" in found.text
    assert sentences(found) == sentences(imported(tmp_path, ""))
    assert [d.code for d in imported(tmp_path, flag, approximate=False).diagnostics if d.code[0] == "E"] == ["E1304"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--checkpoint-activations", "recompute whole_blocks"),
        ("--position-embedding-type alibi", "model llama3_8b"),
        ("--optimizer sgd", "optimizer adamw"),
        ("--add-qkv-bias --qk-layernorm", "model qwen2_5_7b"),
        ("--deepspeed --zero-stage 2", "store grads, optimizer over dp"),
        ("--deepspeed --cpu-optimizer", "offload optimizer to host"),
    ],
)
def test_what_is_near_is_the_plans(flags: str, sentence: str, tmp_path: Path) -> None:
    kept = SCRIPT.replace("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "")
    found = imported(tmp_path, flags, text=kept)
    assert any(line.startswith(sentence) for line in sentences(found)), (found.diagnostics, found.text)
    assert found.inexact and all(d.severity != "error" for d in found.diagnostics)


def test_a_flag_of_the_users_own_version_is_named_and_a_typing_error_is_refused(tmp_path: Path) -> None:
    found = imported(tmp_path, "--our-own-thing 3 --lr 1")
    assert [d.message.rpartition(" ")[2] for d in found.diagnostics if d.code == "W1314"] == ["our_own_thing"]
    assert not imported(tmp_path, "--our-own-thing 3", approximate=False).text
    assert not imported(tmp_path, "--tensor-model-paralel-size 8").text
    assert not imported(tmp_path, "--expert-tensor-model-parallel-size 8").text


SHAPE = DecoderShape(layers=4, embed=512, heads=8, kv_heads=8, ffn=2048, vocab=1024)


@pytest.mark.parametrize(
    "shape",
    [
        replace(SHAPE, rms_norm=False, biased=True),
        replace(SHAPE, rms_norm=False, rotary=False, positions=256, biased=True),
        replace(SHAPE, gated=False, biased=True, tied=True),
        replace(SHAPE, ffn=0, experts=4, top_k=2, expert_ffn=1024, rms_norm=False, gated=False, biased=True),
    ],
)
def test_the_nearest_model_differs_by_the_share_that_is_said(shape: DecoderShape, tmp_path: Path) -> None:
    words, unlike = nearest_words(shape)
    model = read_model(words, tmp_path)
    assert isinstance(model, Model)
    said = float(unlike.rpartition(": ")[2].split(" ")[0]) * (-1 if "fewer" in unlike else 1)
    assert said == pytest.approx(100 * (model.parameters / by_hand(shape) - 1), abs=0.006) and abs(said) < 1


def by_hand(shape: DecoderShape) -> int:
    """Parameters, each tensor by itself."""
    d, ff = shape.embed, shape.expert_ffn or shape.ffn
    norm = [(d,)] if shape.rms_norm else [(d,), (d,)]
    ups = 2 if shape.gated else 1
    mlp = [(d, ff)] * ups + [(ff, d)] + ([(ff,)] * ups + [(d,)] if shape.biased else [])
    experts = mlp * shape.experts + [(d, shape.experts)] if shape.experts else mlp
    attention = [(d, d)] * 4 + ([(d,)] * 4 if shape.biased else [])
    ends = [(shape.vocab, d)] * (1 if shape.tied else 2) + [(shape.positions, d)] + norm
    total = 0
    for tensor in (attention + experts + norm * 2) * shape.layers + ends:
        size = 1
        for n in tensor:
            size *= n
        total += size
    return total


def test_by_hand_is_the_catalogs_own_count() -> None:
    shape = DecoderShape(
        layers=96, embed=12288, heads=96, kv_heads=96, ffn=49152, vocab=50257, positions=2048,
        rms_norm=False, rotary=False, gated=False, biased=True, tied=True,
    )  # fmt: skip
    assert by_hand(shape) == build_model("gpt3_175b").parameters


def test_check_says_approximate_and_strict_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT.replace("--lr 1e-4", "--fp8-param-gather --our-own-thing 3"))
    monkeypatch.chdir(tmp_path)
    cluster = ["--cluster", "1 x h100_node"]
    assert main(["check", "run.sh", *cluster]) == 0
    shown = capsys.readouterr().out
    assert "approximate: 2 fields" in shown and "W1310" in shown and "W1314" in shown
    assert main(["check", "run.sh", *cluster, "--strict"]) == 1
    assert "E1303" in (shown := capsys.readouterr().out) and "E1304" in shown
    assert main(["import", "run.sh", *cluster, "-o", "run.plan"]) == 0
    assert "approximate: 2 fields" in capsys.readouterr().out
    assert main(["import", "run.sh", *cluster, "--strict"]) == 1
