"""Memory of a module's own code for its backward, seen in one run on fake tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planc
from planc.ir.report import Report
from planc.ir.saved_by_code import Elements, SavedByCode
from planc.ir.saved_model import SavedModel
from tests.cuda.families import config_of, model_on

pytest.importorskip("transformers")
PLAN = """plan own
model from code "own"
batch 8 x {} tokens
cluster 4 x cpu_local
mesh fsdp 4
use fsdp over fsdp
compute fp32
target cuda
"""
ROWS = ("batch", "sequence")


def own_code(saved: SavedModel, section: str, op: str) -> tuple[SavedByCode, ...]:
    return next(o.own_code for o in saved.model.ops[section] if o.name == op)


def checked(folder: Path, saved: SavedModel, tokens: int) -> Report:
    saved.write(folder / "own.model.json")
    (folder / "own.plan").write_text(PLAN.format(tokens))
    report = planc.check(folder / "own.plan")
    assert report.step is not None
    return report


class LongNorm(nn.Module):
    """A norm of llama that does something else with more than 128 tokens."""

    def __init__(self, norm: Any, *, raises: bool) -> None:
        super().__init__()
        self.weight, self.eps, self.longest, self.raises = norm.weight, norm.variance_epsilon, 128, raises

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.longest:
            if self.raises:
                raise ValueError("no more than 128 tokens")
            x = x.float().exp().to(x.dtype)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def with_long_norm(*, raises: bool) -> Any:
    model: Any = model_on("meta", config_of("llama"))
    model.model.norm = LongNorm(model.model.norm, raises=raises)
    return model


def test_a_norm_keeps_the_stream_in_fp32_and_what_it_made_in_bf16() -> None:
    """LlamaRMSNorm: `.to(float32)` is kept for the square and the product, the product in bf16 for the gain's
    gradient, and one number a row."""
    saved = planc.model_of(model_on("meta", config_of("llama")))
    (norm,) = own_code(saved, "block", "attention.norm")
    assert norm.saves == () and norm.up_to == 0
    assert set(norm.inside) == {
        Elements(dims=ROWS, dtype="fp32"),
        Elements(dims=(*ROWS, "embed"), dtype="fp32"),
        Elements(dims=(*ROWS, "embed"), dtype="compute"),
    }
    (half,) = own_code(saved, "block", "ffn.swiglu")
    assert half.saves == ("ffn.gate", "ffn.up") and half.inside == (Elements(dims=(*ROWS, "ffn")),)
    assert saved.model.unseen == () and SavedModel.parse(saved.text()) == saved


@pytest.mark.parametrize(("family", "squares"), [("llama", 0.0), ("bloom", 2.0), ("gpt_oss", 1.0)])
def test_scores_are_kept_where_attention_is_no_fused_kernel(family: str, squares: float) -> None:
    """Bloom keeps them in fp32 and in bf16. Those of gpt_oss have a column more than keys, for its sinks: one length,
    however many tokens there are."""
    saved = planc.model_of(model_on("meta", config_of(family)))
    (core,) = own_code(saved, "block", "attention.core")
    assert sum(e.copies for e in core.inside if e.dims == (*ROWS, "sequence", "heads")) == squares
    assert all(e.copies < 500 for e in core.inside)


def test_experts_keep_what_their_activation_does() -> None:
    """Those of gpt_oss put gates and ups in turn, take them apart, clamp both, and add a weighted bias (66 numbers a
    row beside those of their width); the others keep the gate's silu and its product."""
    rows = ("experts", "slots")
    kept = {}
    for family in ("gpt_oss", "qwen3_moe"):
        (code,) = own_code(planc.model_of(model_on("meta", config_of(family))), "block", "moe.swiglu")
        kept[family] = (code.saves, {e.dims: e.copies for e in code.inside})
    assert kept["qwen3_moe"] == (("moe.gate", "moe.up"), {rows: 1.0, (*rows, "expert_ffn"): 2.0})
    assert kept["gpt_oss"] == ((), {rows: 66.0, (*rows, "expert_ffn"): 7.0})


def test_code_that_differs_for_long_sequences_is_known_by_length() -> None:
    saved = planc.model_of(with_long_norm(raises=False))
    short, long = own_code(saved, "last", "final.norm")
    assert (short.up_to, long.up_to) == (128, 0) and saved.model.unseen == ()
    assert {e.dims for e in long.inside if e.dtype == "fp32"} > {e.dims for e in short.inside if e.dtype == "fp32"}


def test_code_that_cannot_be_run_is_noted(tmp_path: Path) -> None:
    saved = planc.model_of(with_long_norm(raises=True))
    (unseen,) = saved.model.unseen
    assert (unseen.above, unseen.up_to) == (128, 0) and unseen.why.startswith("tests/cuda/test_keep.py:")
    assert unseen.why.endswith(": ValueError: no more than 128 tokens")
    (only,) = own_code(saved, "last", "final.norm")
    assert only.up_to == 128
    (note,) = (d for d in checked(tmp_path, saved, 129).diagnostics if d.code == "N0119")
    assert f"of sequences of more than 128 tokens: {unseen.why}" in note.message
    assert not any(d.code == "N0119" for d in checked(tmp_path, saved, 128).diagnostics)


def test_planc_s_modules_stand_for_code_that_was_not_seen(tmp_path: Path) -> None:
    """For sequences for which the code was seen the peak is another."""
    saved = planc.model_of(with_long_norm(raises=True))
    ops = {section: tuple(replace(o, own_code=()) for o in ops) for section, ops in saved.model.ops.items()}
    without = replace(saved, model=replace(saved.model, ops=ops))
    short, long = ([checked(tmp_path, s, tokens).memory for s in (saved, without)] for tokens in (128, 129))
    assert short[0] != short[1] and long[0] == long[1]


def test_latent_attention_keeps_no_scores_and_its_router_a_copy_in_fp32() -> None:
    """Values narrower than keys are one kernel on a device, which the CPU has not; DeepSeek's router multiplies in
    fp32, and keeps what it takes."""
    saved = planc.model_of(model_on("meta", config_of("deepseek_v3")))
    (core,), (route,) = (own_code(saved, "block", name) for name in ("attention.core", "moe.route"))
    assert saved.model.unseen == () and not any(e.dims.count("sequence") > 1 for e in core.inside)
    assert Elements(dims=(*ROWS, "embed"), dtype="fp32") in route.inside
    (plain,) = own_code(planc.model_of(model_on("meta", config_of("qwen3_moe"))), "block", "moe.route")
    assert not any("embed" in e.dims for e in plain.inside)
