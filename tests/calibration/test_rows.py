"""Published runs as facts and as plans: none is dropped but by the stated rules, each has one meaning."""

from collections import Counter

import pytest

from planc.calibration.plans import layout_of, plan_of, plan_text, release
from planc.calibration.published_clusters import slice_shape
from planc.calibration.rows import Row, counted_flops_per_token, measured_s, missing, sweep_rows, training_rows

COUNTED = [row for row in training_rows() if not missing(row)]
OF_EACH = list({(row.publisher, row.chip, row.moe): row for row in COUNTED}.values())


def test_no_row_is_dropped_but_by_a_rule() -> None:
    why = Counter(missing(row) for row in training_rows())
    assert why == {"": 327, "no dims": 30, "no layout": 2, "recomputation unknown": 35, "regressed kernel": 1}
    assert len(sweep_rows()) == 757


def one(name: str, **changed: dict[str, object]) -> Row:
    """A training row, or what it would be with other facts."""
    row = next(r for r in COUNTED if r.id == name)
    return Row({**row.facts, **{k: {**row.facts[k], **v} for k, v in changed.items()}})


def test_torchtitan_splits_a_batch_in_as_many_microbatches_as_ranks() -> None:
    """Its batch of a rank is that of a step: 32 sequences over 8 ranks of the pipeline are 8 microbatches of 4."""
    plan = plan_of(one("tt-t5-1"))
    assert (plan.batch.microbatch_sequences, plan.microbatches, plan.pipeline) == (4, 8, 8)


def test_torchtitan_stores_over_context_parallel_ranks_too() -> None:
    alone = one("tt-t6-1", parallel={"fsdp": 1, "cp": 8}, batch={"global_batch_seqs": 8})
    assert "store params, optimizer over cp\n" in plan_text(alone)


def test_torchtitan_as_its_pages_say() -> None:
    """The loss is compiled since 2025, attention is cuDNN's on Blackwell and is not kept there, segments of several
    nodes do not grow; float8 keeps every other product as bf16 does."""
    old, hopper, blackwell = (one(n) for n in ("tt-t4-0", "tt-h200-32", "tt-b200-float8-tensorwise"))
    assert "compile blocks\n" in plan_text(old) and "compile blocks, loss\n" in plan_text(hopper)
    assert "ffn.up\n" in plan_text(hopper) and "attention.add" in plan_text(hopper)
    assert "ffn.up, attention.core\n" in plan_text(blackwell) and "as cudnn\n" in plan_text(blackwell)
    assert plan_of(hopper).cluster.chip.runtime_fraction > plan_of(blackwell).cluster.chip.runtime_fraction


@pytest.mark.parametrize("row", OF_EACH, ids=lambda r: r.id)
def test_a_row_is_a_plan(row: Row) -> None:
    """The plan's devices, tokens and parameters are the row's."""
    plan = plan_of(row)
    per_chip = plan.cluster.chip.devices
    assert plan.mesh.devices == row.devices * per_chip == layout_of(row).devices
    assert (plan.batch.sequences, plan.batch.sequence_tokens) == (row.sequences, row.sequence)
    published = row.model.get("params")
    if published:
        assert plan.model.parameters == pytest.approx(published, rel=0.13)


def test_every_row_is_a_plan() -> None:
    assert {plan_of(row).mesh.devices > 0 for row in COUNTED} == {True}


def test_a_step_time_is_used_as_it_is_printed() -> None:
    row = next(r for r in COUNTED if r.id == "korthikanti-175B-selective+sp")
    assert measured_s(row) == 13.75
    assert "recompute attention.core\n" in plan_text(row) and "interleaved_1f1b(chunks = 3)" in plan_text(row)


def test_experts_overlap_where_recipes_say_so() -> None:
    """Whole iterations are captured from release 26.06 on; Kimi's are not, and earlier ones wait for their tokens."""
    rows = [row for row in COUNTED if row.moe and row.publisher.endswith("Megatron-Bridge")]
    overlapped = {row.id for row in rows if "as dual_batch" in plan_text(row)}
    names = ("DeepSeekV3", "GPTOSS120B", "Qwen3_30B", "Qwen3_235B")
    wanted = {r.id for r in rows if release(r) >= "26.06" and "MXFP8" in r.id and any(n in r.id for n in names)}
    assert overlapped - wanted == {r.id for r in rows if "Qwen3_235B_a22B-H100" in r.id} and wanted < overlapped


def test_blocks_run_again_as_the_framework_does() -> None:
    """Megatron's checkpoint is a function that ends with its block; torch's stops early."""
    words = {row.publisher: plan_text(row) for row in COUNTED if str(row.facts["options"]["recompute"]) == "full"}
    assert "recompute whole_blocks\n" in words["calculon-ai/calculon"]
    assert "recompute blocks\n" in words["pytorch/torchtitan"]


def test_less_power_is_a_slower_clock() -> None:
    """A chip with 500 of 700 W computes with the cube root of that; its memory is what the row says."""
    capped = next(r for r in COUNTED if "500 W cap" in str(r.facts["hardware"].get("detail")))
    free = next(r for r in COUNTED if r.chip == capped.chip and "detail" not in r.facts["hardware"])
    slow, fast = plan_of(capped).cluster.chip, plan_of(free).cluster.chip
    assert slow.flops_per_s["bf16"] / fast.flops_per_s["bf16"] == pytest.approx((5 / 7) ** (1 / 3))
    assert slow.memory_bandwidth_bytes_per_s == 2.4e12 < fast.memory_bandwidth_bytes_per_s


def test_flops_are_counted_as_the_source_counts_them() -> None:
    """Megatron-Bridge counts causal attention: its tokens/s and TFLOP/s agree for an unrounded release."""
    row = next(r for r in COUNTED if "(26.06 " in r.source and "LLAMA3.1_405B-GB300" in r.id)
    measured = row.facts["measured"]
    rate = counted_flops_per_token(row) * measured["tokens_per_s_per_device"] / 1e12
    assert rate == pytest.approx(measured["tflops_per_device"], rel=0.01)


def test_a_slice_is_as_even_as_it_goes() -> None:
    assert slice_shape(256, 2) == (16, 16) and slice_shape(128, 3) == (4, 4, 8) and slice_shape(2048, 3) == (8, 16, 16)
