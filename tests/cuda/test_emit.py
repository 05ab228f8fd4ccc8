"""The emitted text, without running it: deterministic, tidy, of torch alone, and what each plan asks for."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from planc.backends.cuda.emit.program import emit
from planc.checks import check_plan
from planc.language.build import build_file
from planc.lowering import lower_plan
from tests.plans import propagated

from .cases import LAYOUTS, SP, TP, case, plan_of

ROOT = Path(__file__).resolve().parents[2]
NAMES = list(LAYOUTS)
EXPORTS = {
    "build_mesh",
    "parallelize",
    "build_step",
    "build_evaluate",
    "clip_grad_norm",
    "data_rank",
    "loss_fn",
}


PRIVATE = {
    "torch.distributed._functional_collectives",
    "torch._inductor",
    "torch.distributed._symmetric_memory",
}
"""Differentiable collectives, and matmuls in pieces, are nowhere else in torch 2.13, for which the file asks."""


def text_of(name: str) -> str:
    return emit(propagated(case(name)))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_deterministic_and_complete(name: str) -> None:
    text = text_of(name)
    assert text == text_of(name)
    functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert functions >= EXPORTS


STANDARD = ("collections", "copy", "functools", "typing", "warnings")


@pytest.mark.parametrize("name", NAMES)
def test_it_imports_torch_alone_and_nothing_private(name: str) -> None:
    modules = [n for n in ast.walk(ast.parse(text_of(name))) if isinstance(n, ast.Import | ast.ImportFrom)]
    named = [n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in modules]
    assert {str(m).split(".")[0] for m in named} <= {"torch", "torchao", *STANDARD}
    assert ("torchao.float8" in named) == name.startswith("float8")
    assert {m for m in named if "._" in str(m)} <= PRIVATE


def test_every_text_is_as_ruff_would_have_it(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(text_of(name))
    for command in (["format", "--check"], ["check"]):
        argv = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_emitting_loads_no_framework() -> None:
    code = "import sys, planc.backends.cuda.emit.program; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        ("fsdp", '"reshard_after_forward": True}', "apply_tp"),
        ("fsdp_step", "set_reshard_after_backward(last)", '"reshard_after_forward": True'),
        ("zero1", "set_requires_gradient_sync(last)", "loss_parallel"),
        ("zero2", "set_reshard_after_backward(last)", "set_requires_gradient_sync"),
        ("hsdp", "set_requires_all_reduce(last)", "set_requires_gradient_sync"),
        ("fsdp_bf16", "param_dtype=torch.bfloat16, reduce_dtype=torch.float32", "loss_parallel"),
        ("two_parts", 'tp = mesh["a"]\n    # case_two_parts.plan:7  shard heads over a', "_flatten"),
        ("part_of_axes", 'return mesh["a", "tp"]._flatten("a_tp")', 'mesh["a"]'),
        ("ring_flash", "attention.core as flash\n    k, v = (x.repeat", "sdpa_kernel"),
        ("cp_flash", "with sdpa_kernel(SDPBackend.FLASH_ATTENTION)", "Ring"),
        ("buckets", "fully_shard(blocks[first : first + 2], **config)", "prefetch("),
        ("prefetch", "set_modules_to_forward_prefetch(groups[index + 1 : index + 3])", "blocks[first"),
        ("buckets_ahead", "groups[max(index - 1, 0) : index][::-1])", "list(model.layers.values()):"),
        ("state_bf16", "total_norm([p.grad for p in parameters", "get_total_norm("),
        ("state_bf16_1f1b", "apply_state_dtype(stage)", "apply_state_dtype(model)\n"),
        ("zero1_tp_sp_no_vocab", "output.clone()", "VocabParallelEmbedding"),
        ("fsdp_tp_sp", "VocabParallelEmbedding(output_layouts=Shard(1))", "output.clone()"),
        ("dp_tp_no_vocab", "RowwiseParallel", "SequenceParallel"),
        ("recompute_core", "block.attention.core.forward = partial", "block.forward"),
        ("1f1b", "Schedule1F1B(pipeline[0]", "tokens.split"),
        ("four_chunks", 'a.computation_type.name == "UNSHARD"', "model.output = convert"),
        ("interleaved_1f1b", "return ScheduleInterleaved1F1B(pipeline", "UNSHARD"),
        ("compile_overlap", 'enable_symm_mem_for_group(mesh.get_group("tp").group_name)', "apply_compile(model)"),
        ("float8_rowwise", 'wide = {"0"}', "model.output = convert"),
        ("float8_tensorwise", "model.output = convert_to_float8_training(model.output", "wide"),
    ],
)
def test_a_sentence_writes_what_it_needs(name: str, present: str, absent: str) -> None:
    text = text_of(name)
    assert present in text
    assert absent not in text


def test_norms_are_taken_mesh_by_mesh_where_two_axes_divide_two_parts() -> None:
    """A tied table and sequences divided everywhere would leave no parameter whole; here some norms are."""
    plan = plan_of("two", "a 2 > tp 2", "shard heads over a", "shard ffn, vocab over tp")
    assert "one norm per mesh" in emit(propagated(plan))


def test_a_replay_takes_the_ring_s_output_as_it_was() -> None:
    kept = text_of("keep_ring")
    assert "context_fn=keep_rings" in kept and "out, log_sum = Rings.now.made.pop(0)" in kept
    assert "create_selective_checkpoint_contexts" not in kept
    assert "Rings" not in text_of("ring_fsdp")


def test_one_gather_serves_the_three_projections() -> None:
    """q, k and v read one tensor: their parent gathers it, and they take it as it is."""
    text = emit(propagated(plan_of("gathers", "tp 2", TP, SP)))
    assert '"attention": PrepareModuleInput(input_layouts=(Shard(1),)' in text
    assert text.count("ColwiseParallel()") == 5


@pytest.mark.parametrize("plan", ["tiny", "llama3_70b_h100"])
def test_golden_of_the_emitted_text(plan: str, golden: Callable[[Path, str], None]) -> None:
    built = build_file(ROOT / "plans" / f"{plan}.plan", target="cuda").plan
    assert built is not None
    golden(ROOT / "plans" / "goldens" / f"{plan}.cuda.py", emit(propagated(built)))


def test_a_compiled_block_is_replayed_whole_under_tensor_parallelism_and_sees_its_replay_without() -> None:
    """torch 2.13 fails to trace a checkpoint around DTensors."""
    for name, order in (("compile_tp", ["apply_compile", "apply_recompute"]), ("compile_fsdp", [])):
        calls = [line.strip().partition("(")[0] for line in text_of(name).splitlines() if line.startswith("    apply_")]
        made = [c for c in calls if c in ("apply_compile", "apply_recompute")]
        assert made == (order or ["apply_recompute", "apply_compile"])
        assert calls[-1] == "apply_fsdp"


def test_another_torch_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program runs on another torch than it was compiled for, and says so; not on one known to compute wrongly."""
    program = lower_plan(check_plan(case("fsdp")), "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.load()
    monkeypatch.setattr(torch, "__version__", "2.16.0+cu132")
    with pytest.warns(UserWarning, match="compiled for torch 2.13 and never tried on 2.16.0"):
        lower_plan(check_plan(case("zero1")), "cuda").load()
    monkeypatch.setattr(torch, "__version__", "2.9.0+cu128")
    with pytest.raises(RuntimeError, match=r"torch 2\.9\.0\+cu128 is too old: on 2\.9 tensor parallelism"):
        lower_plan(check_plan(case("hsdp")), "cuda").load()


def test_a_stage_of_an_end_alone_needs_no_positions() -> None:
    """A stage of the embedding or the head alone rotates nothing under context parallelism; one with a block must."""
    emitted = lower_plan(check_plan(case("cp_end_alone")), "cuda", version="installed").load()

    class Mesh:
        def __getitem__(self, name: str) -> str:
            return name

    stage = torch.nn.Module()
    stage.layers = torch.nn.ModuleDict()
    emitted.apply_cp(stage, Mesh())
    stage.layers["0"] = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="no module of the model has an attribute `positions`"):
        emitted.apply_cp(stage, Mesh())
