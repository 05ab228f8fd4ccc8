"""Megatron-Bridge's dumps and overrides, read by Megatron-LM's settings under other names."""

from pathlib import Path

import pytest

from planc.driver import load
from planc.interop.exporting import export_plan
from planc.interop.importing import Imported, import_files
from planc.interop.values import Options
from tests.interop.test_export import LAYOUTS, MEGATRON

DUMP = """_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  activation_func:
    _call_: false
    _target_: torch.nn.functional.silu
  attention_backend:
    _args_: [2]
    _call_: true
    _target_: megatron.core.transformer.enums.AttnBackend
  add_bias_linear: false
  gated_linear_unit: true
  share_embeddings_and_output_weights: false
  num_layers: 80
  hidden_size: 8192
  ffn_hidden_size: 28672
  num_attention_heads: 64
  num_query_groups: 8
  normalization: RMSNorm
  position_embedding_type: rope
  seq_length: 8192
  vocab_size: 128256
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 5
  context_parallel_size: 2
  sequence_parallel: true
  pipeline_dtype:
    _call_: false
    _target_: torch.bfloat16
  cp_comm_type: null
  recompute_granularity: null
train:
  micro_batch_size: 1
  global_batch_size: 512
ddp:
  use_distributed_optimizer: true
  overlap_grad_reduce: true
  overlap_param_gather: true
  grad_reduce_in_fp32: true
optimizer:
  optimizer: adam
  main_grads_dtype:
    _call_: false
    _target_: torch.float32
dataset:
  seq_length: 8192
mixed_precision: bf16_mixed
comm_overlap:
  tp_comm_overlap: true
"""
OPTIONS = Options(cluster="16 x h100_node", devices=128)


def read(folder: Path, text: str) -> Imported:
    file = folder / "run_config.yaml"
    file.write_text(text)
    return import_files([file], OPTIONS)


def test_a_dump_is_read_section_by_section(tmp_path: Path) -> None:
    found = read(tmp_path, DUMP)
    setup = found.setup
    assert setup is not None and found.system is not None, found.diagnostics
    assert found.system.name == "bridge" and setup.model == "llama3_70b"
    assert (setup.pp, setup.chunks, setup.cp, setup.tp, setup.shard, setup.zero) == (4, 5, 2, 4, 4, 1)
    assert (setup.precision.compute, setup.precision.reduce) == ("bf16", "fp32") and not setup.stored
    assert setup.overlaps == (("tp", "async_matmul"),) and setup.kernel == "cudnn"
    assert "train.global_batch_size = 512" in found.chain


@pytest.mark.parametrize(
    ("old", "new", "code", "at"),
    [
        ("add_bias_linear: false", "add_bias_linear: true", "E1304", "num_layers"),
        ("mixed_precision: bf16_mixed", "mixed_precision: my_own", "E1304", "my_own"),
        ("mixed_precision: bf16_mixed", "mixed_precision: bf16_with_mxfp8_mixed", "E1304", "mxfp8"),
        ("global_batch_size: 512", "global_batch_size: 511", "E1307", "511"),
        ("cp_comm_type: null", "cp_comm_type: a2a+p2p", "E1304", "a2a+p2p"),
        ("  tp_comm_overlap: true", "  overlap_moe_expert_parallel_comm: true", "E1307", "overlap_moe"),
        ("seq_length: 8192\nmixed", "tokens: 8192\nmixed", "E1306", "_target_"),
        ("  sequence_parallel: true", "  sequence_paralel: true", "E1303", "sequence_paralel"),
    ],
)
def test_what_a_plan_cannot_say_has_a_code_at_its_line(old: str, new: str, code: str, at: str, tmp_path: Path) -> None:
    assert old in DUMP
    text = DUMP.replace(old, new)
    line = next(n for n, line in enumerate(text.split("\n"), 1) if at in line)
    found = [d for d in read(tmp_path, text).diagnostics if d.severity == "error"]
    assert (code, line) in [(d.code, d.span.line) for d in found]


@pytest.mark.parametrize("layout", ["sp", "interleaved", "uneven", "gpt", "moments", "float8", "latent", "fsdp"])
def test_overrides_say_the_plan(layout: str, tmp_path: Path) -> None:
    model, sentences = LAYOUTS[layout]
    path = tmp_path / "on_gpus.plan"
    path.write_text(MEGATRON.replace("MODEL", model).replace("SENTENCES", sentences))
    exported = export_plan(load(path), "bridge")
    assert "train.global_batch_size=64" in exported.text and "model.tensor_model_parallel_size=" in exported.text
