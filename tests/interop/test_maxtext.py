"""MaxText: words after base.yml, with its axes, batch and policies."""

from pathlib import Path

import pytest

from planc.diag.errors import PlanError
from planc.driver import load
from planc.interop.exporting import export_plan
from planc.interop.importing import Imported, import_files
from planc.interop.values import Options

START = "python3 -m maxtext.trainers.pre_train.train base.yml run_name=r model_name=llama3-8b max_target_length=4096 "
OPTIONS = Options(cluster="tpu_v5p(2x2x4)", devices=16)


def imported(tmp_path: Path, words: str, options: Options = OPTIONS) -> Imported:
    file = tmp_path / "run.sh"
    file.write_text(f"#!/bin/bash\n{START}{words}\n")
    return import_files([file], options)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("per_device_batch_size=2", {"shard": 16, "zero": 3, "sequences": 32, "microbatch": 2, "replica": 1}),
        ("", {"sequences": 192, "recompute.ops": ("blocks",), "recompute.kept": (), "precision.compute": "bf16"}),
        ("per_device_batch_size=0.25 ici_tensor_parallelism=4", {"sequences": 4, "tp": 4, "shard": 4, "sp": False}),
        ("ici_tensor_sequence_parallelism=4", {"tp": 4, "sp": True}),
        (
            "ici_context_parallelism=4 per_device_batch_size=1",
            {"cp": 4, "zero_over_cp": True, "cp_method": "all_gather"},
        ),
        ("ici_data_parallelism=2 ici_fsdp_parallelism=8", {"replica": 2, "shard": 8}),
        ("gradient_accumulation_steps=4 per_device_batch_size=1", {"sequences": 64, "microbatch": 1}),
        (
            "remat_policy=qkv_proj_offloaded",
            {
                "recompute.kept": ("attention.q", "attention.k", "attention.v"),
                "offloaded": ("attention.q", "attention.k", "attention.v"),
            },
        ),
        ("remat_policy=custom out_proj=device", {"recompute.kept": ("attention.out",), "offloaded": ()}),
        ("remat_policy=custom decoder_layer_input=offload", {"recompute.kept": (), "offloaded": ("hidden",)}),
        ("optimizer_memory_host_offload=true", {"offloaded": ("optimizer",)}),
        (
            "ici_pipeline_parallelism=4 per_device_batch_size=4 num_pipeline_microbatches=8",
            {"pp": 4, "schedule": "circular", "chunks": 8, "microbatch": 2, "shard": 4},
        ),
        ("quantization=int8", {"quantized.0.method": "int8"}),
        ("attention=dot_product", {"kernel": "unfused"}),
        ("num_vocab_tiling=4", {"loss_chunks": 4}),
    ],
)
def test_words_say_what_maxtext_does(words: str, settings: dict[str, object], tmp_path: Path) -> None:
    found = imported(tmp_path, words)
    assert found.setup is not None, found.diagnostics
    for name, expected in settings.items():
        value: object = found.setup
        for part in name.split("."):
            value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
        assert value == expected, name


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("ici_tensor_parallelism=3", "E1307"),
        ("per_device_batch_size=0.3", "E1307"),
        ("ici_fsdp_parallelism=-1 ici_data_parallelism=-1", "E1307"),
        ("ici_fsdp_transpose_parallelism=2", "E1304"),
        ("shard_optimizer_over_data=true ici_data_parallelism=2", "E1304"),
        ("remat_policy=some", "E1305"),
        ("ici_tensor_paralelism=2", "E1303"),
        ("per_device_batch_size=$BATCH", "E1305"),
        ("model_name=olmo3-7b", "E1304"),
        ("mtp_num_layers=1", "E1304"),
    ],
)
def test_what_has_no_sentence_has_a_code(words: str, code: str, tmp_path: Path) -> None:
    text = words if "model_name" not in words else words + " steps=1"
    assert code in [d.code for d in imported(tmp_path, text).diagnostics]


def test_a_topology_names_the_cluster(tmp_path: Path) -> None:
    found = imported(
        tmp_path, "compile_topology=v5e-256 compile_topology_num_slices=2 dcn_data_parallelism=2", Options()
    )
    assert found.setup.cluster == "2 x tpu_v5e(16x16)" and found.setup.devices == 512
    assert (found.setup.replica, found.setup.shard) == (2, 256)
    assert [d.code for d in imported(tmp_path, "", Options()).diagnostics if d.severity == "error"] == ["E1306"]


PLAN = """plan maxtext
model     llama3_8b
batch     64 x 4096 tokens microbatch 2
cluster   tpu_v5p(2x2x4)
LAYOUT
compute   bf16 reduce fp32
recompute RECOMPUTE
"""


@pytest.mark.parametrize(
    ("layout", "recompute"),
    [
        ("mesh fsdp 16\nuse fsdp over fsdp", "blocks"),
        ("mesh replica 2 > fsdp 8\nuse hsdp over replica, fsdp", "blocks except attention.q, attention.k, attention.v"),
        ("mesh fsdp 4 > tp 4\nuse fsdp over fsdp\nuse tp over tp", "blocks except attention.out"),
        ("mesh fsdp 4 > tp 4\nuse fsdp over fsdp\nuse tp over tp\nuse sp over tp", "blocks except ffn.gate"),
        (
            "mesh fsdp 4 > cp 4\nshard batch over fsdp\nstore params, grads, optimizer over fsdp, cp\n"
            "use cp over cp as all_gather",
            "blocks",
        ),
        ("mesh fsdp 16\nuse fsdp over fsdp\nquantize ffn as int8", "blocks"),
        ("mesh fsdp 16\nuse fsdp over fsdp\noffload optimizer, hidden to host", "blocks"),
        ("mesh fsdp 16\nuse fsdp over fsdp\nloss in 4 chunks", "blocks"),
    ],
)
def test_maxtext_says_its_own_layouts(layout: str, recompute: str, tmp_path: Path) -> None:
    path = tmp_path / "maxtext.plan"
    path.write_text(PLAN.replace("LAYOUT", layout).replace("RECOMPUTE", recompute))
    plan = load(path)
    if "quantize" in layout:
        with pytest.raises(PlanError, match="cannot say `quantize ffn as int8`"):
            export_plan(plan, "maxtext")
        return
    exported = export_plan(plan, "maxtext")
    again = tmp_path / "again.sh"
    again.write_text(exported.text)
    options = Options(cluster="tpu_v5p(2x2x4)", devices=16)
    setup = import_files([again], options).setup
    assert (setup.sequences, setup.loss_chunks) == (64, 4 if "chunks" in layout else 1)
