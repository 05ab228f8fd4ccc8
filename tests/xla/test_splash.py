"""Splash attention in the emitted program: when it runs, its blocks, its cost, and no score in the compiled text."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from planc.backends.xla.analysis.attention import FP32_SCORES, attention_kernel, runs_splash, splash_block
from planc.backends.xla.analysis.peak_memory import peak_memory
from planc.backends.xla.audit.compile import compiled
from planc.backends.xla.emit.program import emit
from planc.backends.xla.rules import realise
from planc.driver import load
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives
from tests.audit import run_tpu
from tests.audit.tpu_cases import PRESETS
from tests.audit.tpu_cases import plan_of as audited_plan
from tests.plans import propagated
from tests.xla.cases import FSDP, FSDP_TP, SPLASH, TP, plan_of

UNFUSED = "attention.core as unfused"
BF16 = ("compute bf16 reduce fp32", "recompute blocks")
V5P = {"cluster": "tpu_v5p(2x2x1)"}
PLANS = Path(__file__).parents[2] / "plans"


def of(*layout: str, **more: str) -> Sharded:
    return propagated(plan_of("kernel", *layout, **more))


def tpu(*sentences: str, cluster: str = "tpu_v5p(2x2x1)", tokens: int = 1024) -> Sharded:
    return of(*FSDP_TP, *BF16, *sentences, cluster=cluster, batch=f"16 x {tokens} tokens microbatch 2")


def test_a_plan_for_tpus_runs_it_and_others_where_they_say_so() -> None:
    assert runs_splash(tpu()) and not runs_splash(tpu(UNFUSED))
    assert not runs_splash(of(*FSDP_TP)) and runs_splash(of(*FSDP_TP, SPLASH))
    assert "splash_attention" not in emit(of(*FSDP_TP))


@pytest.mark.parametrize(
    "layout",
    [
        ("cp 4", "use cp over cp"),
        ("cp 4", "use cp over cp as ring"),
        ("fsdp 2 > tp 2", FSDP, "shard ffn, vocab over tp"),
    ],
)
def test_without_being_asked_it_is_left_out_where_it_cannot_run(layout: tuple[str, ...]) -> None:
    found = of(*layout, **V5P)
    assert not runs_splash(found) and attention_kernel(found) == FP32_SCORES
    assert "splash_attention" not in emit(found)


@pytest.mark.parametrize(
    ("cluster", "tokens", "block"),
    [
        ("tpu_v5p(2x2x1)", 8192, 512),
        ("tpu_v6e(2x2)", 8192, 1024),
        ("tpu_v6e(2x2)", 2560, 512),
        ("tpu_v5p(2x2x1)", 640, 128),
        ("tpu_v5p(2x2x1)", 24, 128),
    ],
)
def test_blocks_are_the_chip_s_as_far_as_the_rows_fall_into_them(cluster: str, tokens: int, block: int) -> None:
    found = tpu(cluster=cluster, tokens=tokens)
    assert splash_block(found) == block
    assert f"BLOCK = {block}  # " in emit(found)
    assert ("jnp.pad" in emit(found)) == (tokens % 128 > 0)


def test_the_plan_s_own_block_stands() -> None:
    found = tpu("attention.core as splash(block = 256)")
    assert "BLOCK = 256" in emit(found) and "attention.core as splash(block = 256)" in emit(found)


def test_a_rank_with_key_heads_of_others_takes_its_own() -> None:
    mine = of("a 4 > b 2", "shard heads over a, b", "replicate kv_heads over b", SPLASH)
    assert 'axis_index(("a", "b"))' not in emit(mine), "one query head, and the one key head that it looks at"
    whole = of("tp 8", "shard heads over tp", "replicate kv_heads over tp", SPLASH)
    assert 'jax.lax.axis_index("tp") * q.shape[2] + jnp.arange(q.shape[2])) // 2 % k.shape[2]' in emit(whole)
    assert attention_kernel(whole).repeats_keys and not attention_kernel(of(*FSDP_TP, SPLASH)).repeats_keys


def test_what_the_backward_keeps_of_attention_is_the_kernel_s_own() -> None:
    kept = emit(of(*FSDP_TP, SPLASH, "recompute blocks except attention.core"))
    assert 'residual_checkpoint_name="attention.kernel"' in kept and 'KEPT = ("attention.kernel",)' in kept
    assert "residual_checkpoint_name" not in emit(of(*FSDP_TP, SPLASH, "recompute blocks"))


def peak_bytes(sharded: Sharded) -> float:
    (found,) = peak_memory(sharded, realise(sharded, semantic_collectives(sharded)))
    return found.total


def test_no_score_is_held_and_its_seconds_are_a_fused_kernel_s() -> None:
    scores = 2 * 2 * 4 * 8192 * 8192 * 4  # twice, of two sequences' four heads, fp32
    assert peak_bytes(tpu(UNFUSED, tokens=8192)) > scores > 10 * peak_bytes(tpu(tokens=8192))
    assert not attention_kernel(tpu()).stores_scores and attention_kernel(tpu(UNFUSED)).stores_scores


def test_the_largest_tensor_of_scores_in_a_text() -> None:
    text = "%a = f32[2,1024,64]{2,1,0} add(...), %b = bf16[8,1024,1024]{2,1,0} dot(f32[1024,1024]{1,0} %c)"
    assert run_tpu.full_scores(text, 1024, heads=8) == 8 * 1024 * 1024
    assert run_tpu.full_scores(text, 1024, heads=9) == 0 == run_tpu.full_scores(text, 2048, heads=1)


@pytest.mark.parametrize("name", [n for n in PRESETS if run_tpu.results().get(n, {}).get("said") == "fits"])
def test_no_compiled_preset_holds_scores(name: str) -> None:
    """The committed answers of the TPU compiler."""
    assert runs_splash(propagated(audited_plan(name)))
    assert run_tpu.results()[name]["full_scores"] == 0


def test_every_preset_for_tpus_was_compiled_and_searched() -> None:
    """Presets of v5p and v6e by model, machine, mesh and rows, at their depth or with a few of their layers."""

    def facts(plan: Plan) -> tuple[object, ...]:
        mesh = tuple((axis.name, axis.size) for axis in plan.mesh.axes)
        return plan.model.name, plan.cluster.chip.name, plan.cluster.chips, mesh, plan.batch.sequence_tokens

    searched = {facts(audited_plan(name)) for name in PRESETS if "full_scores" in run_tpu.results().get(name, {})}
    files = [f for folder in (".", "presets") for f in sorted((PLANS / folder).glob("*.plan"))]
    on_tpus = [f for f in files if re.search(r"^cluster +tpu_", f.read_text(), re.MULTILINE)]
    presets = {str(f): facts(load(f)) for f in on_tpus}
    assert len(presets) >= 7 and [name for name, found in presets.items() if found not in searched] == []


@pytest.mark.launch
@pytest.mark.long
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
def test_the_tpu_compiler_takes_it_and_makes_no_scores() -> None:
    """A layer's forward, its replay and the two kernels of the backward; the plain program has the scores. Of one layer
    alone the compiler makes forward and replay one."""
    model = "llama_micro(layers = 2, embed = 256, head_dim = 128, heads = 4, kv_heads = 2)"
    more = {"model": model, "batch": "4 x 1280 tokens microbatch 1", "cluster": "tpu_v5p(2x2x1)"}
    layout = ("fsdp 2 > tp 2", FSDP, TP, *BF16)
    found, plain = (compiled(plan_of("hlo", *layout, *s, **more), "v5p:2x2x1").hlo for s in ((), (UNFUSED,)))
    assert found.count('custom_call_target="tpu_custom_call"') == 4 and "tpu_custom_call" not in plain
    assert run_tpu.full_scores(found, 1280, heads=2) == 0 < run_tpu.full_scores(plain, 1280, heads=2)
