"""transformers: a DistributedConfig beside the model's config and the Trainer's arguments."""

import json
from pathlib import Path

import pytest

from planc.interop.importing import Imported, import_files
from planc.interop.systems.hugging_face import PLANS
from planc.interop.values import Options
from planc.language.build import build_file

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 1000000.0,
}
ARGUMENTS = {"output_dir": "x", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_length": 4096}


def read(tmp_path: Path, distributed: object, model: object = LLAMA, arguments: object = ARGUMENTS) -> Imported:
    files = []
    for name, content in (("config", model), ("distributed", distributed), ("arguments", arguments)):
        if content is not None:
            files.append(tmp_path / f"{name}.json")
            files[-1].write_text(json.dumps(content))
    return import_files(files, Options(cluster="1 x h100_node", devices=8, folder=tmp_path))


def errors(found: Imported) -> list[str]:
    return [d.code for d in found.diagnostics if d.severity == "error"]


def test_three_files_make_a_plan_that_the_language_reads(tmp_path: Path) -> None:
    found = read(tmp_path, {"tp_size": 2, "fsdp_size": 4, "fsdp_mixed_precision": True})
    assert errors(found) == [] and found.system.name == "hugging_face"
    (tmp_path / "config.plan").write_text(found.text)
    plan = build_file(tmp_path / "config.plan").plan
    assert 'model     from "config.json"' in found.text and plan.model.sizes["embed"] == 4096
    assert plan.mesh.sizes == {"fsdp": 4, "tp": 2} and plan.store("params") == ("fsdp",)
    assert plan.axes_of("heads") == plan.axes_of("ffn") == ("tp",)
    assert (plan.batch.sequences, plan.microbatches) == (2 * 4 * 4, 4)
    assert plan.precision.compute == "bf16" and plan.precision.reduce == "fp32"
    assert [d.code for d in found.diagnostics if d.severity == "warning"] == ["W1310"], "the logits are gathered"


@pytest.mark.parametrize(
    ("distributed", "expected"),
    [
        ({"fsdp_size": 8}, {"shard": 8, "zero": 3, "gather": "pass", "tp": 1}),
        ({"fsdp_size": 4, "dp_replicate_size": 2}, {"replica": 2, "shard": 4, "zero": 3}),
        ({"dp_replicate_size": 8}, {"replica": 8, "shard": 1, "zero": 0}),
        ({"tp_size": 8}, {"tp": 8, "shard": 1}),
        ({"tp_plan": "auto", "fsdp_size": 2}, {"tp": 4, "shard": 2}),
        ({"fsdp_size": 8, "fsdp_plan": {"layers.*": "keep_full_weight"}}, {"gather": "microbatch"}),
        ({"fsdp_size": 8, "fsdp_cpu_offload": True}, {"offloaded": ("params", "optimizer")}),
        ({"tp_size": 8, "tp_plan": {"lm_head": "replicate"}}, {"vocab_over_tp": False}),
    ],
)
def test_sizes(distributed: object, expected: dict[str, object], tmp_path: Path) -> None:
    found = read(tmp_path, distributed)
    assert errors(found) == []
    assert {name: getattr(found.setup, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("distributed", "code"),
    [
        ({"tp_size": 2, "fsdp_size": 2}, "E1307"),
        ({"pp_size": 2, "tp_size": 4}, "E1304"),
        ({"tp_size": 8, "enable_sequence_parallel": True}, "E1304"),
        ({"tp_size": 8, "enable_expert_parallel": True}, "E1304"),
        ({"fsdp_size": 8, "ep_size": 8}, "E1307"),
        ({"tp_size": 8, "tp_plan": {}}, "E1304"),
        ({"tp_size": 8, "tp_plan": {"layers.*.self_attn.q_proj": "replicate"}}, "E1304"),
        ({"tp_size": 8, "tp_plan": {"layers.*.self_attn.q_proj": "diagonal"}}, "E1304"),
        ({"fsdp_size": 8, "ep_plan": {"x": "grouped_gemm"}}, "E1304"),
        ({"fsdp_size": 0}, "E1305"),
        ({"fsdp_size": 8, "fsdp_sice": 8}, "E1303"),
    ],
)
def test_what_has_no_sentence(distributed: object, code: str, tmp_path: Path) -> None:
    assert code in errors(read(tmp_path, distributed))


def test_experts_are_divided_with_tensor_parallelism_or_among_ranks(tmp_path: Path) -> None:
    inner = read(tmp_path, {"tp_size": 2, "fsdp_size": 4}, MIXTRAL).setup
    assert (inner.ep, inner.etp, inner.heads_over_tp) == (1, 2, True)
    found = read(tmp_path, {"tp_size": 2, "fsdp_size": 4, "ep_size": 4}, MIXTRAL)
    assert errors(found) == [] and (found.setup.ep, found.setup.etp) == (4, 1)
    (tmp_path / "config.plan").write_text(found.text)
    assert build_file(tmp_path / "config.plan").plan.mesh.size("ep") == 4


def test_weights_stay_in_the_dtype_of_the_config(tmp_path: Path) -> None:
    found = read(tmp_path, {"fsdp_size": 8}, {**LLAMA, "dtype": "bfloat16"})
    assert dict(found.setup.stored) == {"params": "bf16", "grads": "bf16", "optimizer": "bf16"}
    assert found.setup.precision.reduce == "bf16"
    half = read(tmp_path, {"fsdp_size": 8}, {**LLAMA, "dtype": "float16"})
    assert errors(half) == [] and set(dict(half.setup.stored).values()) == {"fp16"}
    assert (half.setup.precision.compute, half.setup.precision.reduce) == ("fp16", "fp16")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bf16": False}, "fp32 reduce fp32"),
        ({"bf16": False, "tf32": True}, "tf32 reduce fp32"),
        ({"bf16": False, "fp16": True}, "fp16 reduce fp32"),
        ({"bf16": True, "tf32": True}, "bf16 reduce fp32"),
        ({"bf16": True, "fp16": True}, ""),
    ],
)
def test_the_trainers_dtypes(given: dict[str, bool], said: str, tmp_path: Path) -> None:
    """Autocast leaves gradients in fp32; TF32 counts where products are of fp32."""
    found = read(tmp_path, {"fsdp_size": 1, "dp_replicate_size": 8}, LLAMA, {**ARGUMENTS, **given})
    assert errors(found) == ([] if said else ["E1307"])
    assert not said or f"compute   {said} " in found.text


def test_what_the_files_do_not_hold_is_asked_for(tmp_path: Path) -> None:
    found = read(tmp_path, {"fsdp_size": 8}, LLAMA, None)
    helps = " ".join(d.help for d in found.diagnostics)
    assert set(errors(found)) == {"E1306"}
    assert "--set per_device_train_batch_size=" in helps and "--set sequence_length=" in helps
    assert "E1306" in errors(read(tmp_path, {"fsdp_size": 8}, None))


def test_only_deepseeks_plan_leaves_attention_whole() -> None:
    def divides(kind: str) -> bool:
        return any("self_attn.q_proj" in rule and style == "colwise" for rule, style in PLANS[kind].items())

    assert divides("llama") and divides("mixtral") and divides("qwen3_moe") and not divides("deepseek_v3")
