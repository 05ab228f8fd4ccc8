"""AutoModel: recipes in YAML, with the sections that decide a layout."""

from pathlib import Path

import pytest
import yaml

from planc.driver import load
from planc.interop.exporting import export_plan
from planc.interop.importing import Imported, import_files
from planc.interop.values import Options

RECIPE = """recipe: TrainFinetuneRecipeForNextTokenPrediction
model:
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
  torch_dtype: float32
dataset:
  seq_length: 4096
step_scheduler:
  global_batch_size: 64
  local_batch_size: 2
distributed:
  strategy: fsdp2
"""
OPTIONS = Options(cluster="2 x h100_node", devices=16)


def imported(tmp_path: Path, more: str = "", text: str = RECIPE) -> Imported:
    file = tmp_path / "recipe.yaml"
    file.write_text(text + "".join(f"  {line}\n" for line in more.split("\n") if line))
    return import_files([file], OPTIONS)


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ("", {"shard": 16, "zero": 3, "whole_grads": True, "sequences": 64, "microbatch": 2, "gather": "pass"}),
        ("defer_fsdp_grad_sync: false\ndp_replicate_size: 2", {"whole_grads": False, "replica": 2, "shard": 8}),
        ("tp_size: 4\nsequence_parallel: true", {"tp": 4, "sp": True, "shard": 4}),
        ("tp_size: 4", {"sp": False}),
        ("cp_size: 2\ndp_size: null", {"cp": 2, "zero_over_cp": True, "cp_method": "all_gather"}),
        ("activation_checkpointing: true\nenable_compile: true", {"compiled": ("blocks",)}),
        ("reshard_after_forward: false", {"gather": "microbatch"}),
        (
            "pp_size: 2\npipeline:\n  pp_schedule: interleaved1f1b\n  layers_per_stage: 8",
            {"pp": 2, "schedule": "interleaved_1f1b", "chunks": 2, "gather": "step", "microbatch": 1},
        ),
    ],
)
def test_a_recipe_says_what_automodel_does(more: str, settings: dict[str, object], tmp_path: Path) -> None:
    text = RECIPE.replace("local_batch_size: 2", "local_batch_size: 8") if "pp_size" in more else RECIPE
    found = imported(tmp_path, more, text)
    assert found.setup is not None, found.diagnostics
    assert {name: getattr(found.setup, name) for name in settings} == settings


def test_another_strategy_is_another_zero(tmp_path: Path) -> None:
    for strategy, zero, replica in (("ddp", 0, 16), ("megatron_fsdp", 3, 1)):
        found = imported(tmp_path, text=RECIPE.replace("strategy: fsdp2", f"strategy: {strategy}"))
        assert (found.setup.zero, found.setup.replica) == (zero, replica)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("tp_size: 3", "E1307"),
        ("dp_size: 4", "E1307"),
        ("activation_checkpointing: selective", "W1310"),
        ("activation_checkpointing: full\nactivation_checkpointing_scope: language", "E1304"),
        ("autocast_dtype: bfloat16", "E1304"),
        ("tp_sise: 2", "E1303"),
        ("pp_size: 2\npipeline:\n  layers_per_stage: 12\n  pp_schedule: interleaved1f1b", "E1307"),
    ],
)
def test_what_has_no_sentence_has_a_code(more: str, code: str, tmp_path: Path) -> None:
    assert code in [d.code for d in imported(tmp_path, more).diagnostics]


def test_state_is_in_the_dtype_that_the_model_is_loaded_in(tmp_path: Path) -> None:
    found = imported(tmp_path, text=RECIPE.replace("  torch_dtype: float32\n", ""))
    assert dict(found.setup.stored) == {"params": "bf16", "grads": "bf16", "optimizer": "bf16"}


PLAN = """plan auto
model     llama3_1_8b
batch     64 x 4096 tokens microbatch 1
cluster   2 x h100_node
LAYOUT
compute   bf16 reduce fp32
"""


@pytest.mark.parametrize(
    "layout",
    [
        "mesh fsdp 16\nuse fsdp over fsdp\nrecompute blocks\ncompile blocks",
        "mesh fsdp 16\nshard batch over fsdp\nstore params, optimizer over fsdp",
        "mesh replica 2 > fsdp 8\nuse hsdp over replica, fsdp",
        "mesh fsdp 4 > tp 4\nuse fsdp over fsdp\nuse tp over tp\nuse sp over tp\noverlap tp as async_matmul",
        "mesh dp 16\nuse ddp over dp",
        "mesh dp 16\nuse zero1 over dp",
        "mesh pp 2 > fsdp 8\nshard batch over fsdp\nstore params, optimizer over fsdp\ngather params per step\n"
        "split layers over pp as 1f1b",
        "mesh fsdp 16\nuse fsdp over fsdp\noffload params, optimizer to host",
        "mesh fsdp 16\nuse fsdp over fsdp\nstore params, grads, optimizer as bf16",
    ],
)
def test_automodel_says_its_own_layouts(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "auto.plan"
    path.write_text(PLAN.replace("LAYOUT", layout))
    exported = export_plan(load(path), "automodel")
    assert "distributed" in yaml.safe_load(exported.text)
    file = tmp_path / "again.yaml"
    file.write_text(exported.text)
    assert import_files([file], OPTIONS).setup.sequences == 64
