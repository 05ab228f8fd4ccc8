"""DeepSpeed's and Accelerate's files: what they say, what they ask for, what they cannot say."""

import json
from pathlib import Path

import pytest

from planc.diag.errors import PlanError
from planc.driver import load
from planc.interop.effective import differing
from planc.interop.exporting import export_plan
from planc.interop.importing import Imported, import_files
from planc.interop.values import Options
from planc.language.build import build_file

PLAN = """plan on_gpus
model     MODEL
batch     64 x 4096 tokens microbatch 1
cluster   2 x h100_node
SENTENCES
"""
BF16 = "compute bf16 reduce bf16"
DEEPSPEED = {
    "ddp_fp32": ("llama3_8b", "mesh dp 16\nuse ddp over dp\noverlap dp as none\ncompute fp32"),
    "zero1": ("llama3_8b", f"mesh dp 16\nuse zero1 over dp\nstore grads as bf16\n{BF16}"),
    "zero2": ("llama3_8b", f"mesh dp 16\nuse zero2 over dp\nstore grads as bf16 over dp\n{BF16}"),
    "zero2_fp32_sums": ("llama3_8b", "mesh dp 16\nuse zero2 over dp\ncompute bf16 reduce fp32"),
    "zero3_offload": (
        "llama3_8b",
        f"mesh fsdp 16\nuse fsdp over fsdp\n{BF16}\noffload params, optimizer to host",
    ),
    "zero1_plain": ("llama3_8b", f"mesh dp 16\nuse zero1 over dp\n{BF16}\noverlap dp as none"),
    "mics": ("llama3_8b", f"mesh replica 2 > fsdp 8\nuse hsdp over replica, fsdp\n{BF16}"),
    "autotp": ("llama3_8b", f"mesh dp 4 > tp 4\nuse zero1 over dp\nshard heads, ffn over tp\n{BF16}"),
    "autotp_head": ("llama3_8b", f"mesh dp 4 > tp 4\nuse zero1 over dp\nuse tp over tp\n{BF16}"),
    "ulysses": (
        "llama3_8b",
        f"mesh dp 4 > cp 4\nshard batch over dp\nstore optimizer over dp, cp\nuse ulysses over cp\n{BF16}",
    ),
    "bf16_state": (
        "llama3_8b",
        f"mesh dp 16\nshard batch over dp\nstore params as bf16\nstore grads, optimizer as bf16 over dp\n{BF16}",
    ),
    "blocks": ("llama3_8b", f"mesh dp 16\nuse zero1 over dp\n{BF16}\nrecompute blocks"),
    "whole_blocks": ("llama3_8b", f"mesh dp 16\nuse zero1 over dp\n{BF16}\nrecompute whole_blocks"),
    "compiled": ("llama3_8b", f"mesh dp 16\nuse zero1 over dp\n{BF16}\ncompile blocks, loss"),
    "muon": ("llama3_8b", f"mesh dp 16\nuse zero1 over dp\n{BF16}\noptimizer muon"),
    "pipeline": ("llama3_8b", f"mesh pp 4 > dp 4\nuse zero1 over dp\nsplit layers over pp as 1f1b\n{BF16}"),
    "experts": (
        "mixtral_8x7b",
        f"mesh dp 16\nuse zero1 over dp\nview edp 2 > ep 8 of dp for experts\nuse ep over ep\n"
        f"store optimizer over edp for experts\n{BF16}",
    ),
}
ACCELERATE = {
    "ddp": ("llama3_8b", "mesh dp 16\nuse ddp over dp\ncompute bf16 reduce fp32"),
    "ddp_fp32": ("llama3_8b", "mesh dp 16\nuse ddp over dp\ncompute fp32"),
    "fsdp": ("llama3_8b", f"mesh fsdp 16\nuse fsdp over fsdp\n{BF16}"),
    "kept": ("llama3_8b", f"mesh fsdp 16\nuse fsdp over fsdp\ngather params per microbatch\n{BF16}"),
    "hsdp": ("llama3_8b", f"mesh replica 2 > fsdp 8\nuse hsdp over replica, fsdp\n{BF16}"),
    "tp_hsdp": (
        "llama3_8b",
        f"mesh replica 2 > fsdp 4 > tp 2\nuse hsdp over replica, fsdp\nshard heads, ffn over tp\n{BF16}",
    ),
    "ring": (
        "llama3_8b",
        f"mesh fsdp 8 > cp 2\nshard batch over fsdp\nstore params, grads, optimizer over fsdp, cp\n"
        f"use cp over cp as ring\n{BF16}",
    ),
    "all_gather": (
        "llama3_8b",
        f"mesh fsdp 8 > cp 2\nshard batch over fsdp\nstore params, grads, optimizer over fsdp, cp\n"
        f"use cp over cp as all_gather\n{BF16}",
    ),
    "blocks": ("llama3_8b", f"mesh fsdp 16\nuse fsdp over fsdp\n{BF16}\nrecompute blocks"),
    "whole_blocks": ("llama3_8b", f"mesh fsdp 16\nuse fsdp over fsdp\n{BF16}\nrecompute whole_blocks"),
    "ddp_blocks": ("llama3_8b", "mesh dp 16\nuse ddp over dp\ncompute fp32\nrecompute blocks"),
    "offload": ("llama3_8b", f"mesh fsdp 16\nuse fsdp over fsdp\n{BF16}\noffload params, optimizer to host"),
    "muon": ("llama3_8b", f"mesh fsdp 16\nuse fsdp over fsdp\n{BF16}\noptimizer muon"),
    "compiled": ("llama3_8b", f"mesh fsdp 16\nuse fsdp over fsdp\n{BF16}\ncompile blocks, loss"),
}
LAYOUTS = [("deepspeed", n) for n in DEEPSPEED] + [("accelerate", n) for n in ACCELERATE]


@pytest.mark.parametrize(("system", "layout"), LAYOUTS)
def test_a_layout_goes_there_and_back(system: str, layout: str, tmp_path: Path) -> None:
    model, sentences = (DEEPSPEED if system == "deepspeed" else ACCELERATE)[layout]
    path = tmp_path / "on_gpus.plan"
    path.write_text(PLAN.replace("MODEL", model).replace("SENTENCES", sentences))
    exported = export_plan(load(path), system)
    file = tmp_path / f"exported{exported.system.ending}"
    file.write_text(exported.text)
    options = Options(cluster="2 x h100_node", devices=16, model=model, given=dict(exported.beside))
    found = import_files([file], options)
    assert found.system.name == system and errors(found) == []
    (tmp_path / "back.plan").write_text(found.text)
    assert differing(load(path), build_file(tmp_path / "back.plan").plan) == ()
    again = export_plan(build_file(tmp_path / "back.plan").plan, system)
    assert again.fields == exported.fields and again.beside == exported.beside


def errors(found: Imported) -> list[str]:
    return [d.code for d in found.diagnostics if d.severity == "error"]


@pytest.mark.parametrize(
    ("system", "sentence"),
    [
        ("deepspeed", "mesh dp 16\nuse ddp over dp\ncompute fp32"),
        ("deepspeed", "mesh fsdp 16\nuse fsdp over fsdp\ngather params per microbatch\ncompute fp32"),
        ("deepspeed", f"mesh dp 16\nuse zero1 over dp\n{BF16}\nrecompute attention.core"),
        (
            "deepspeed",
            "mesh pp 4 > dp 4\nuse zero1 over dp\nsplit layers over pp as interleaved_1f1b(chunks = 2)\ncompute fp32",
        ),
        ("deepspeed", "mesh fsdp 8 > cp 2\nuse fsdp over fsdp\nuse cp over cp as ring\ncompute fp32"),
        ("accelerate", f"mesh dp 16\nuse zero1 over dp\n{BF16}"),
        ("accelerate", "mesh fsdp 16\nuse fsdp over fsdp\ncompute bf16 reduce fp32"),
        ("accelerate", f"mesh fsdp 4 > tp 4\nuse fsdp over fsdp\nuse tp over tp\n{BF16}"),
        ("accelerate", f"mesh pp 4 > fsdp 4\nuse fsdp over fsdp\nsplit layers over pp as 1f1b\n{BF16}"),
        ("accelerate", f"mesh fsdp 16\nuse fsdp over fsdp\n{BF16}\noffload optimizer to host"),
    ],
)
def test_what_a_system_has_not_is_refused_with_the_reason(system: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "on_gpus.plan"
    path.write_text(PLAN.replace("MODEL", "llama3_8b").replace("SENTENCES", sentence))
    with pytest.raises(PlanError) as refused:
        export_plan(load(path), system)
    found = refused.value.diagnostics
    assert {d.code for d in found} == {"E1309"} and all(d.span.line > 1 for d in found)


# What files say.


ZERO3 = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
}
YAML = """distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 1
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""
GIVEN = {"sequence_length": "4096", "per_device_train_batch_size": "1"}


def from_json(tmp_path: Path, fields: object, given: dict[str, str] | None = None, trainer: object = None) -> Imported:
    (tmp_path / "ds.json").write_text(json.dumps(fields))
    files = [tmp_path / "ds.json"]
    if trainer is not None:
        (tmp_path / "args.json").write_text(json.dumps(trainer))
        files.append(tmp_path / "args.json")
    chosen = {"sequence_length": "4096"} if given is None else given
    return import_files(files, Options(cluster="2 x h100_node", devices=16, model="llama3_8b", given=chosen))


def from_yaml(tmp_path: Path, text: str, given: dict[str, str] = GIVEN) -> Imported:
    (tmp_path / "a.yaml").write_text(text)
    options = Options(cluster="2 x h100_node", devices=16, model="llama3_8b", given=given)
    return import_files([tmp_path / "a.yaml"], options)


def changed(**fields: object) -> dict[str, object]:
    whole = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    return {**whole, **fields}


def test_auto_is_asked_for_by_name_and_a_file_of_arguments_answers_it(tmp_path: Path) -> None:
    found = from_json(tmp_path, ZERO3)
    assert set(errors(found)) == {"E1306"}
    helps = " ".join(d.help for d in found.diagnostics)
    assert "--set per_device_train_batch_size=" in helps and "--set bf16.enabled=" in helps
    found = from_json(tmp_path, ZERO3, trainer={"bf16": True, "gradient_accumulation_steps": 2, "output_dir": "x"})
    assert errors(found) == [] and found.system.name == "deepspeed"
    assert (
        found.setup.microbatch == 8 and found.setup.sequences == 8 * 2 * 16 and found.setup.precision.compute == "bf16"
    )
    assert "default of DeepSpeed" in found.text and "per_device_train_batch_size = 8" in found.text


def test_two_files_that_disagree_are_refused_at_the_second(tmp_path: Path) -> None:
    found = from_json(
        tmp_path, changed(gradient_accumulation_steps=4), trainer={"output_dir": "x", "gradient_accumulation_steps": 2}
    )
    assert errors(found) == ["E1307"] and found.diagnostics[0].span.file.endswith("args.json")


@pytest.mark.parametrize(
    ("fields", "sequences", "micro"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 64, 2),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, 64, 2),
        ({"train_batch_size": 64}, 64, 4),
        ({"train_micro_batch_size_per_gpu": 2}, 32, 2),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 96, 2),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"autotp_size": 4}}, 64, 2),
    ],
)
def test_two_of_three_numbers_give_the_third(
    fields: dict[str, object], sequences: int, micro: int, tmp_path: Path
) -> None:
    setup = from_json(tmp_path, fields).setup
    assert (setup.sequences, setup.microbatch) == (sequences, micro)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (changed(train_batch_size=63), "E1307"),
        (changed(train_batch_size=4), "E1307"),
        (changed(zero_optimization={"stage": 2, "offload_param": {"device": "cpu"}}), "E1307"),
        (changed(zero_optimization={"stage": 3, "offload_param": {"device": "nvme"}}), "E1304"),
        (changed(zero_optimization={"stage": 3, "zero_quantized_weights": True}), "E1304"),
        (changed(zero_optimization={"stage": 3, "zero_quantized_gradients": True}), "E1304"),
        (changed(zero_optimization={"stage": 3, "zero_hpz_partition_size": 8}), "E1304"),
        (changed(zero_optimization={"stage": 3, "mics_shard_size": 3}), "E1307"),
        (changed(zero_optimization={"stage": 4}), "E1305"),
        (changed(zero_optimisation={"stage": 2}), "E1303"),
        (changed(fp16={"enabled": True}), "E1307"),
        (changed(optimizer={"type": "OneBitAdam"}), "E1304"),
        (changed(tensor_parallel={"autotp_size": 3}), "E1307"),
        (
            changed(tensor_parallel={"autotp_size": 2, "partition_config": {"layer_specs": [{"patterns": ["x"]}]}}),
            "E1304",
        ),
        (changed(pipeline={"stages": "auto"}), "E1306"),
        (changed(expert_parallel={"enabled": True, "autoep_size": 8}), "E1307"),
        (changed(compression_training={"weight_quantization": {"shared_parameters": {"enabled": True}}}), "E1304"),
        (changed(autotuning={"enabled": True}), "E1304"),
    ],
)
def test_what_deepspeed_says_and_a_plan_does_not_has_a_code(
    fields: dict[str, object], code: str, tmp_path: Path
) -> None:
    found = from_json(tmp_path, fields)
    assert code in errors(found) and not found.text


def test_an_option_that_the_system_has_not_is_refused(tmp_path: Path) -> None:
    assert errors(from_json(tmp_path, changed(), {"sequence_length": "4096", "micro": "2"})) == ["E1303"]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("FULL_SHARD", "SHARDED", "E1305"),
        ("num_processes: 16", "num_processes: 8", "E1307"),
        ("num_machines: 2", "num_machines: 3\n  #", ""),
        ("FULL_SHARD", "HYBRID_SHARD", ""),
        ("bf16", "fp16", ""),
        ("bf16", "fp8", "E1304"),
        ("TRANSFORMER_BASED_WRAP", "NO_WRAP", "W1310"),
        ("fsdp_version: 1", "fsdp_version: 2", ""),
        ("distributed_type: FSDP", "distributed_type: XLA", "E1304"),
        (
            "distributed_type: FSDP",
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: x.json}",
            "E1306",
        ),
        ("fsdp_config:", "parallelism_config: {parallelism_config_tp_size: 2}\nfsdp_config:", "E1307"),
        ("fsdp_config:", "unheard_of: 1\nfsdp_config:", "E1303"),
    ],
)
def test_accelerates_traps(old: str, new: str, code: str, tmp_path: Path) -> None:
    found = from_yaml(tmp_path, YAML.replace(old, new))
    codes = [d.code for d in found.diagnostics if d.severity != "note"]
    assert code in codes if code else codes == []


def test_accelerates_file_has_no_batch(tmp_path: Path) -> None:
    found = from_yaml(tmp_path, YAML, {"sequence_length": "4096"})
    assert set(errors(found)) == {"E1306"}
    assert any("--set per_device_train_batch_size=" in d.help for d in found.diagnostics)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("FULL_SHARD", (1, 16, 3, "pass")),
        ("1", (1, 16, 3, "pass")),
        ("SHARD_GRAD_OP", (1, 16, 3, "microbatch")),
        ("NO_SHARD", (16, 1, 0, None)),
        ("HYBRID_SHARD", (2, 8, 3, "pass")),
        ("HYBRID_SHARD_ZERO2", (2, 8, 3, "microbatch")),
    ],
)
def test_strategies_of_the_first_fsdp(strategy: str, expected: tuple[object, ...], tmp_path: Path) -> None:
    setup = from_yaml(tmp_path, YAML.replace("FULL_SHARD", strategy)).setup
    assert (setup.replica, setup.shard, setup.zero, setup.gather) == expected
    second = from_yaml(tmp_path, YAML.replace("FULL_SHARD", strategy).replace("version: 1", "version: 2")).setup
    assert (second.replica, second.shard, second.zero, second.gather) == (1, 16, 3, "pass"), "not looked at"


def test_deepspeeds_json_beside_accelerates_yaml(tmp_path: Path) -> None:
    text = "distributed_type: DEEPSPEED\nnum_processes: 16\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "ds.json").write_text(json.dumps(changed(train_micro_batch_size_per_gpu=2)))
    options = Options(cluster="2 x h100_node", devices=16, model="llama3_8b", given={"sequence_length": "4096"})
    found = import_files([tmp_path / "a.yaml", tmp_path / "ds.json"], options)
    assert found.system.name == "accelerate" and errors(found) == []
    assert (found.setup.zero, found.setup.microbatch, found.setup.sequences) == (2, 2, 32)
