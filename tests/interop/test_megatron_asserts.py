"""A setting that Megatron-LM stops at is a finding here too; only plans that the language reads are written."""

import json
from pathlib import Path

import pytest

from planc.interop.importing import Imported, import_files
from planc.interop.values import Options
from tests.interop.scripts import SCRIPT

EXPERTS = "--bf16 --num-experts 8 --moe-token-dispatcher-type alltoall --expert-tensor-parallel-size 1"


def read(text: str, folder: Path, ignored: tuple[str, ...] = ()) -> Imported:
    (folder / "run.sh").write_text(text)
    return import_files(
        [folder / "run.sh"], Options(cluster="1 x h100_node", devices=8, folder=folder, ignored=ignored)
    )


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("--sequence-parallel", "--tp-comm-overlap", "tp_comm_overlap"),
        ("TP=4", "PP=3 TP=1", "layers"),
        ("--use-distributed-optimizer", "", "distributed optimizer"),
        ("--overlap-grad-reduce", "", "overlap_grad_reduce"),
        ("--recompute-method uniform", "", "recompute_method"),
        ("--recompute-num-layers 1", "", "recompute_num_layers"),
        ("--recompute-granularity full", "--recompute-granularity selective", "method"),
        ("--bf16", "--bf16 --num-virtual-stages-per-pipeline-rank 2", "virtual"),
        ("--bf16", "--bf16 --context-parallel-size 2 --seq-length 8190", "8190"),
        ("TP=4", "TP=3", "heads"),
        ("--bf16", "--bf16 --expert-model-parallel-size 2", "experts"),
        ("--bf16", f"{EXPERTS} --expert-model-parallel-size 3", "expert"),
        ("--sequence-parallel --use-distributed-optimizer", f"--use-distributed-optimizer {EXPERTS}", "sequence"),
        (
            "--bf16",
            f"{EXPERTS} --expert-model-parallel-size 8 --num-distributed-optimizer-instances 2",
            "= 1, are no multiple of 2",
        ),
        ("--bf16", "--bf16 --overlap-moe-expert-parallel-comm", "overlap"),
    ],
)
def test_what_megatron_asserts_is_a_finding(old: str, new: str, field: str, tmp_path: Path) -> None:
    assert old in SCRIPT
    text = SCRIPT.replace(old, new, 1)
    if "PP=3" in new:
        text = text.replace("--bf16", "--bf16 --pipeline-model-parallel-size 4").replace(
            "--num-layers 32", "--num-layers 30"
        )
        text = text.replace("PP=3 ", "").replace("--sequence-parallel", "")
    found = read(text, tmp_path)
    said = [d.message for d in found.diagnostics if d.code == "E1307"]
    assert not found.text and any(field in message for message in said), said


def test_what_is_left_out_knowingly_breaks_no_claim(tmp_path: Path) -> None:
    text = SCRIPT.replace("--recompute-num-layers 1", "--recompute-num-layers 4")
    assert [d.code for d in read(text, tmp_path).diagnostics if d.severity == "error"] == ["E1304"]
    found = read(text, tmp_path, ("recompute_num_layers",))
    assert found.setup is not None and found.setup.recompute.blocks


def test_the_exchange_of_experts_beside_another_microbatch_is_said(tmp_path: Path) -> None:
    words = "--bf16 --num-experts 8 --moe-ffn-hidden-size 14336 --moe-token-dispatcher-type alltoall"
    words += " --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --overlap-moe-expert-parallel-comm"
    text = SCRIPT.replace("--bf16", words).replace("TP=4", "TP=1")
    text = text.replace("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "")
    found = read(text, tmp_path)
    assert "overlap   ep" in found.text and "dual_batch" in found.text, found.diagnostics


def test_a_config_of_a_family_that_the_catalog_has_not_is_refused(tmp_path: Path) -> None:
    config = {"architectures": ["ArcticForCausalLM"], "model_type": "arctic", "vocab_size": 32000, "hidden_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}')
    options = Options(cluster="1 x h100_node", devices=8, given={"sequence_length": "64"}, folder=tmp_path)
    found = import_files([tmp_path / "ds.json", tmp_path / "config.json"], options)
    assert not found.text and any(d.code.startswith("E01") for d in found.diagnostics), found.diagnostics


def test_a_plan_that_the_language_does_not_read_is_not_written(tmp_path: Path) -> None:
    """All flags are read, and make a sentence about layers that the model has not."""
    flags = "--bf16 --fp8-format hybrid --first-last-layers-bf16 --num-layers-at-start-in-bf16 40"
    (tmp_path / "run.sh").write_text(SCRIPT.replace("--bf16", flags))
    found = import_files([tmp_path / "run.sh"], Options(cluster="1 x h100_node", devices=8, folder=tmp_path))
    errors = [d for d in found.diagnostics if d.severity == "error"]
    assert not found.text and [d.code for d in errors] == ["E0108"], found.diagnostics
    assert errors[0].span.file.endswith("run.sh")


def test_a_configuration_of_nemo_1_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model:\n  mcore_gpt: true\n  tensor_model_parallel_size: 2\n  oops: 1\n")
    found = import_files([tmp_path / "a.yaml"], Options(cluster="1 x h100_node", devices=8))
    assert [d.code for d in found.diagnostics] == ["E1302"] and "NeMo 1.0" in found.diagnostics[0].message


def test_older_names_of_torchtitan_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[experimental]\npipeline_parallel_degree = 2\n'
        "enable_async_tensor_parallel = true\n[parallelism]\ntensor_parallel_degree = 2\n"
    )
    found = import_files([tmp_path / "a.toml"], Options(cluster="1 x h100_node", devices=8))
    assert found.setup is not None and (found.setup.pp, found.setup.overlaps) == (2, (("tp", "async_matmul"),))


def test_a_part_of_a_node_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 2\n")
    given = {"sequence_length": "64", "per_device_train_batch_size": "1"}
    options = Options(cluster="1 x h100_node", devices=8, model="llama3_8b", given=given)
    found = import_files([tmp_path / "a.yaml"], options)
    assert found.setup is not None and (found.setup.cluster, found.setup.devices) == ("1 x h100_node(2)", 2)
