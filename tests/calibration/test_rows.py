"""Published runs as facts and as plans: none is dropped but by the stated rules, each has one meaning."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import planc
from planc.calibration.plans import UnusedFieldError, layout_of, plan_files, plan_of, plan_text, unusable
from planc.calibration.predict import prepare
from planc.calibration.published_clusters import slice_shape
from planc.calibration.row_fields import Fields, framework_of
from planc.calibration.rows import Row, counted_flops_per_token, measured_s, sweep_rows, training_rows
from planc.frameworks import framework

COUNTED = [row for row in training_rows() if not unusable(row)]
OF_EACH = list({(row.publisher, row.chip, row.moe): row for row in COUNTED}.values())


def test_no_row_is_dropped_but_by_a_rule() -> None:
    why = Counter(unusable(row) for row in training_rows())
    dropped = {"no dims": 4, "no layout": 2, "recomputation unknown": 35, "regressed kernel": 1}
    dropped |= {"no sentence for options.cpu_offload": 5, "attention's FLOPs counted in an unknown way": 1}
    assert why == {"": 347, **dropped}
    assert len(sweep_rows()) == 757


def test_flop_rates_of_an_unknown_count_are_no_seconds() -> None:
    """131,072 tokens of 405 billion parameters: half or all of attention's square is 40 % of a step. A source that says
    which it counts, a step time or a short sequence make one of the two."""
    (row,) = (r for r in training_rows() if r.id == "llama3-t4-2")
    assert unusable(row).startswith("attention's FLOPs")
    known: list[dict[str, Any]] = [
        {"source": "NVIDIA-NeMo/Megatron-Bridge docs"},
        {"measured": {**row.facts["measured"], "iter_time_s": 11.0}},
        {"batch": {**row.facts["batch"], "seq": 4096, "global_batch_seqs": 128}},
    ]
    assert [unusable(Row({**row.facts, **facts})) for facts in known] == ["", "", ""]
    causal, whole = (measured_s(Row({**row.facts, "source": s})) for s in ("NVIDIA-NeMo/Megatron-Bridge", "a/b"))
    assert whole / causal == pytest.approx(1.40, abs=0.01)


def one(name: str, **changed: dict[str, object]) -> Row:
    """A training row, or what it would be with other facts."""
    row = next(r for r in COUNTED if r.id == name)
    return Row({**row.facts, **{k: {**row.facts[k], **v} for k, v in changed.items()}})


@pytest.mark.parametrize("row", OF_EACH[::3], ids=lambda r: r.id)
def test_nothing_depends_on_who_published_a_row(row: Row) -> None:
    """Another repository's name changes a comment of the plan, and nothing else."""
    other = Row({**row.facts, "source": "somebody/else " + row.source.partition(" ")[2]})
    texts = [plan_text(r).replace(r.source, "") for r in (row, other)]
    assert texts[0] == texts[1]
    assert prepare(row).step_s() == prepare(other).step_s()


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("parallel", "hierarchical_cp", 4),
        ("parallel", "pp_schedule", "DualPipe"),
        ("options", "cpu_offload", True),
        ("options", "mode", "lora"),
        ("options", "recompute", "a new way"),
        ("model", "conv_kernel", 4),
    ],
)
def test_a_field_that_is_not_used_fails_its_row_by_name(section: str, field: str, value: object) -> None:
    row = one("mbridge-26.06-LLAMA3.1_405B-GB300-256-NVFP4-pretrain-17", **{section: {field: value}})
    with pytest.raises(UnusedFieldError, match=f"{section}.{field}"):
        plan_of(row)


def test_a_checkpoint_of_before_torch_2_1_runs_blocks_to_their_end() -> None:
    """llm-foundry's tables: on A100s of 40 GB by its framework, one model on those of 80 GB by its row, others not."""
    rows = {
        r.id: r for r in COUNTED if r.publisher == "mosaicml/llm-foundry" and r.facts["options"]["recompute"] != "none"
    }
    whole = {name for name, r in rows.items() if "recompute whole_blocks\n" in plan_text(r)}
    assert whole == {name for name in rows if "a100_80gb-bf16-70b" in name} and len(whole) == 1
    rules = framework("llm_foundry")
    assert [rules.runs_whole_blocks(chip) for chip in ("a100_40", "a100", "h100")] == [True, False, False]


def test_checkpointing_that_is_true_is_full() -> None:
    row = one("tt-h200-32", options={"recompute": None, "activation_checkpointing": True})
    assert "recompute blocks\n" in plan_text(row)


def test_a_row_without_its_framework_is_read_by_the_words_of_its_fields() -> None:
    """As its own field says, but for NeMo's launcher and Meta's own trainer, whose fields are Megatron's."""
    unlike = set()
    for row in COUNTED:
        bare = Row({k: v for k, v in row.facts.items() if k != "framework"})
        if (found := framework_of(Fields(bare))) != row.facts["framework"]:
            unlike.add((row.facts["framework"], found))
    assert unlike <= {("nemo", "megatron"), ("torch", "megatron"), ("megatron", "torch")}


@pytest.mark.parametrize(
    "name", ["tt-t5-1", "mbridge-26.06-Kimi_K2-GB300-256-MXFP8-pretrain-35", "maxtext-v5p-64b-2x64"]
)
def test_the_command_line_gives_the_same_seconds(name: str, tmp_path: Path) -> None:
    """The files of a row, checked as any user's are."""
    row = one(name)
    for file, text in plan_files(row).items():
        (tmp_path / file).write_text(text)
    report = planc.check(tmp_path / "row.plan")
    assert report.step is not None and report.step.time_s == prepare(row).step_s()


def test_torchtitan_splits_a_batch_in_as_many_microbatches_as_ranks() -> None:
    """Its batch of a rank is that of a step: 32 sequences over 8 ranks of the pipeline are 8 microbatches of 4."""
    plan = plan_of(one("tt-t5-1"))
    assert (plan.batch.microbatch_sequences, plan.microbatches, plan.pipeline) == (4, 8, 8)


def test_torchtitan_stores_over_context_parallel_ranks_too() -> None:
    alone = one("tt-t6-1", parallel={"fsdp": 1, "cp": 8}, batch={"global_batch_seqs": 8})
    assert "store params, optimizer over cp\n" in plan_text(alone)


def test_torchtitan_as_its_pages_say() -> None:
    """The loss is compiled since 2025, attention is cuDNN's on Blackwell and is not kept there; float8 keeps every
    other product as bf16 does."""
    old, hopper, blackwell = (one(n) for n in ("tt-t4-0", "tt-h200-32", "tt-b200-float8-tensorwise"))
    assert "compile blocks\n" in plan_text(old) and "compile blocks, loss\n" in plan_text(hopper)
    plans = plan_of(hopper), plan_of(blackwell)
    assert [{"ffn.up", "attention.core"} & {*p.recompute.ops} for p in plans] == [
        {"ffn.up"},
        {"ffn.up", "attention.core"},
    ]
    assert [p.attention.method if p.attention else "" for p in plans] == ["", "cudnn"]


@pytest.mark.parametrize("row", OF_EACH, ids=lambda r: r.id)
def test_a_row_is_a_plan(row: Row) -> None:
    """The plan's devices, tokens and parameters are the row's."""
    plan = plan_of(row)
    per_chip = plan.cluster.chip.devices
    assert plan.mesh.devices == row.devices * per_chip == layout_of(Fields(row)).devices
    assert (plan.batch.sequences, plan.batch.sequence_tokens) == (row.sequences, row.sequence)
    published = row.model.get("params")
    if published:
        assert plan.model.parameters == pytest.approx(published, rel=0.13)


def test_every_row_is_a_plan() -> None:
    assert {plan_of(row).mesh.devices > 0 for row in COUNTED} == {True}


def test_a_step_time_is_used_as_it_is_printed() -> None:
    row = next(r for r in COUNTED if r.id == "korthikanti-175B-selective+sp")
    assert measured_s(row) == 13.75
    assert "recompute selective\n" in plan_text(row) and "interleaved_1f1b(chunks = 3)" in plan_text(row)


def test_experts_overlap_where_a_row_says_so() -> None:
    """`ep_overlap` of a row is what its recipe sets: whole iterations are captured from release 26.06 on."""
    rows = [row for row in COUNTED if row.facts["framework"] == "bridge" and row.moe]
    overlapped = {row.id for row in rows if "as dual_batch" in plan_text(row)}
    assert overlapped == {row.id for row in rows if row.facts["options"].get("ep_overlap")} and len(overlapped) > 9


def test_blocks_run_again_as_the_framework_does() -> None:
    """Megatron's checkpoint is a function that ends with its block; torch's stops early."""
    full = [row for row in COUNTED if str(row.facts["options"]["recompute"]) == "full"]
    found = {row.facts["framework"]: plan_of(row).recompute.ops for row in full}
    assert found["megatron"] == ("whole_blocks",) and found["torchtitan"] == ("blocks",)


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
