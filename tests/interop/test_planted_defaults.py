"""A reader with a wrong default is found out: each default is changed by itself, and a test of facts must turn red."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planc.interop.document import FieldValue
from planc.interop.importing import import_files
from planc.interop.system import System
from planc.interop.systems import systems
from planc.interop.values import Options
from planc.ir.plan import Precision, Recompute
from tests.interop.test_hugging_face import LLAMA
from tests.interop.test_real_trainers import PLANS, differences, read, rows

FSDP = "fsdp_config.fsdp_"
SIZES = "parallelism_config.parallelism_config_"
PLANTED: tuple[tuple[str, str, FieldValue], ...] = (
    ("deepspeed", "zero_optimization.stage", 1),
    ("deepspeed", "zero_optimization.overlap_comm", True),
    ("deepspeed", "zero_optimization.mics_shard_size", 2),
    ("deepspeed", "zero_optimization.offload_param.device", "cpu"),
    ("deepspeed", "zero_optimization.offload_optimizer.device", "cpu"),
    ("deepspeed", "zero_optimization.cpu_offload", True),
    ("deepspeed", "gradient_accumulation_steps", 2),
    ("deepspeed", "train_micro_batch_size_per_gpu", 3),
    ("deepspeed", "bf16.enabled", True),
    ("deepspeed", "fp16.enabled", True),
    ("deepspeed", "tensor_parallel.autotp_size", 2),
    ("deepspeed", "sequence_parallel_size", 2),
    ("deepspeed", "num_stages", 2),
    ("deepspeed", "optimizer.type", "Muon"),
    ("deepspeed", "expert_parallel.enabled", "maybe"),
    ("accelerate", f"{FSDP}version", 2),
    ("accelerate", f"{FSDP}sharding_strategy", "NO_SHARD"),
    ("accelerate", f"{FSDP}reshard_after_forward", False),
    ("accelerate", f"{FSDP}activation_checkpointing", True),
    ("accelerate", f"{FSDP}offload_params", True),
    ("accelerate", f"{SIZES}dp_replicate_size", 2),
    ("accelerate", f"{SIZES}tp_size", 2),
    ("accelerate", f"{SIZES}cp_size", 2),
    ("accelerate", "num_processes", 3),
    ("accelerate", "mixed_precision", "bf16"),
    ("accelerate", "deepspeed_config.zero_stage", 3),
    ("hugging_face", "per_device_train_batch_size", 4),
    ("hugging_face", "gradient_accumulation_steps", 2),
    ("hugging_face", "activation_checkpointing", True),
    ("hugging_face", "optim", "muon"),
    ("hugging_face", "bf16", True),
    ("hugging_face", "torch_compile", True),
    ("hugging_face", "fsdp_mixed_precision", True),
    ("hugging_face", "fsdp_cpu_offload", True),
    ("hugging_face", "dp_replicate_size", 2),
    ("hugging_face", "tp_size", 2),
    ("hugging_face", "pp_size", 2),
    ("hugging_face", "dtype", "bfloat16"),
)
_ALIVE: list[System] = []
"""Systems with a planted default; kept, as an index of fields goes by the identity of its system."""


def agrees(system: str, folder: Path) -> bool:
    """True if planc's reading is that of the system's own parser, for each row of the table or for bare files."""
    if system == "hugging_face":
        return _agrees_with_transformers(folder)
    own = [row for row in rows() if row["system"] == system]
    return not any(differences(row) for row in own) and sum(read(row).setup is not None for row in own) == PLANS[system]


def _agrees_with_transformers(folder: Path) -> bool:
    """Defaults of transformers 5.23.0: those of `TrainingArguments`, and of `DistributedConfig(fsdp_size=8)`."""
    contents = {"config": LLAMA, "distributed": {"fsdp_size": 8}, "arguments": {"output_dir": "x", "max_length": 64}}
    files = [folder / f"{name}.json" for name in contents]
    for file, content in zip(files, contents.values(), strict=True):
        file.write_text(json.dumps(content))
    setup = import_files(files, Options(cluster="1 x h100_node", devices=8, folder=folder), "hugging_face").setup
    if setup is None:
        return False
    found = (setup.microbatch, setup.sequences, setup.tp, setup.replica, setup.recompute, setup.precision)
    others = (setup.optimizer, setup.compiled, setup.offloaded, setup.stored)
    return found == (8, 64, 1, 1, Recompute(), Precision()) and others == ("adamw", (), (), ())


@pytest.mark.parametrize("system", ["deepspeed", "accelerate", "hugging_face"])
def test_the_defaults_as_they_are_agree(system: str, tmp_path: Path) -> None:
    assert agrees(system, tmp_path)


@pytest.mark.parametrize(("system", "name", "default"), PLANTED)
def test_a_changed_default_is_found_out(
    system: str, name: str, default: FieldValue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = systems()[system]
    field = own.known(name)
    assert field is not None and field.default != default
    planted = replace(own, fields=tuple(replace(f, default=default) if f.name == field.name else f for f in own.fields))
    _ALIVE.append(planted)
    monkeypatch.setitem(systems(), system, planted)
    assert not agrees(system, tmp_path)
