"""Published runs as facts and as plans: none is dropped but by the stated rules, each has one meaning."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import planc
from planc.cli import main
from planc.frameworks import policy_of
from tests.lab.published.plans import layout_of, plan_files, plan_of, plan_text, unusable
from tests.lab.published.predict import prepare
from tests.lab.published.published_clusters import slice_shape
from tests.lab.published.row_fields import ANY, FLAGS, NO_SENTENCE, Fields, UnusedFieldError, framework_of
from tests.lab.published.rows import Row, counted_flops_per_token, measured_s, sweep_rows, training_rows

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
        ("parallel", "pp_schedule", "a new schedule"),
        ("parallel", "strategy", "a new strategy"),
        ("options", "optimizer", "SGD"),
        ("options", "cuda_graphs", "full_iteration"),
        ("options", "weights", "fp8"),
        ("options", "dtype", "fp64"),
        ("options", "moe_grouped_gemm", False),
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
    rules = policy_of("llm_foundry")
    assert [rules.runs_whole_blocks(chip) for chip in ("a100_40", "a100", "h100")] == [True, False, False]


def test_checkpointing_that_is_true_is_full() -> None:
    row = one("tt-h200-32", options={"recompute": None, "activation_checkpointing": True})
    assert "recompute blocks\n" in plan_text(row) and not unusable(row)


def test_what_the_language_can_say_is_said() -> None:
    """A strategy for an axis' size, every schedule by a framework's name, Muon, and weights in bf16 wherever it is
    written."""
    row = one("tt-h200-32")
    named = one("tt-h200-32", parallel={"fsdp": None, "strategy": "FSDP"})
    assert plan_text(named) == plan_text(row)
    said = {"DualPipe": "dualpipe", "ZBVZeroBubble": "zbv", "DualPipeV": "dualpipev", "GPipe": "gpipe"}
    said |= {"InterleavedZeroBubble": "interleaved_zero_bubble(chunks = 2)", "LoopedBFS": "looped_bfs(chunks = 2)"}
    for name, words in said.items():
        text = plan_text(one("tt-t5-1", parallel={"pp_schedule": name}))
        assert f"split layers over pp as {words}" in text, name
    assert "optimizer muon\n" in plan_text(one("tt-h200-32", options={"optimizer": "Muon, lr 1e-3"}))
    said_in: list[dict[str, object]] = [{"weights": "bf16"}, {"dtype": "bf16 incl. bf16 weights"}]
    for options in said_in:
        assert "store params, grads, optimizer as bf16 over data" in plan_text(one("tt-h200-32", options=options))
    whole: dict[str, object] = {"weights": "bf16", "zero": 1}
    zero1 = one("korthikanti-175B-selective+sp", options=whole, hardware={"n_devices": 128}, parallel={"dp": 2})
    assert "store params, grads as bf16\nstore optimizer as bf16 over data" in plan_text(zero1)


def changed(row: Row, section: str, key: str, value: object) -> Row:
    """The row with another value of one field."""
    facts = dict(row.facts)
    if section in ("moe", "mla"):
        facts["model"] = {**facts["model"], section: {**facts["model"][section], key: value}}
    elif section in ("flags", "environment"):
        facts["options"] = {**facts["options"], section: {**facts["options"][section], key: value}}
    else:
        facts[section] = {**facts[section], key: value}
    return Row(facts)


def fields_of(row: Row) -> list[tuple[str, str]]:
    """Every field of a row by its section, and one in each section that nobody knows."""
    model, options = row.facts["model"], row.facts["options"]
    tables = {name: row.facts[name] for name in ("hardware", "model", "parallel", "batch", "options")}
    tables |= {"moe": model.get("moe"), "mla": model.get("mla")}
    tables |= {"flags": options.get("flags"), "environment": options.get("environment")}
    return [
        (section, key)
        for section, table in tables.items()
        if table
        for key in (*table, "field_that_nobody_knows")
        if key not in ("moe", "mla", "flags", "environment")
    ]


@pytest.mark.parametrize("row", OF_EACH, ids=lambda r: r.id)
def test_no_field_of_a_row_is_dropped(row: Row) -> None:
    """Each, with a word and with a number that it never has: the plan is another one, or the row is refused with the
    field's name, or `NO_SENTENCE` and `FLAGS` note it."""
    before = plan_files(row)
    for section, key in fields_of(row):
        for value in ("nonsense", 7919):
            same, why = False, ""
            try:
                same = plan_files(changed(row, section, key, value)) == before
            except UnusedFieldError as error:
                why = str(error)
            assert not why or section in why or key in why, (section, key, value, why)
            noted = NO_SENTENCE.get(section, {}).get(key) is ANY or (section == "flags" and key in FLAGS)
            assert not same or noted, f"{section}.{key} = {value} is dropped in silence"


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
    assert slice_shape(192, 3) == (4, 4, 12) and slice_shape(7, 3) == (1, 1, 7) and slice_shape(16, 3) == (2, 2, 4)
    assert slice_shape(256, 2) == (16, 16) and slice_shape(128, 3) == (4, 4, 8) and slice_shape(2048, 3) == (8, 16, 16)


def test_a_row_that_fails_is_one_row_s_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slice of 192 chips, which is no power of two, is compared; what cannot be is named with its reason."""
    good = one("tt-h200-32").facts
    tpu = next(r for r in COUNTED if r.chip == "TPU v4").facts
    batch = {**tpu["batch"], "global_batch_seqs": 192 * 16, "per_device_batch_seqs": 16}
    slice_of_192 = {
        **tpu, "id": "192 chips", "hardware": {**tpu["hardware"], "n_devices": 192, "slices": 1}, "batch": batch,
        "parallel": {"ici_fsdp": 192},
    }  # fmt: skip
    bad = {
        "a chip": {**good, "id": "a chip", "hardware": {**good["hardware"], "chip": "abacus"}},
        "no length": {**good, "id": "no length", "batch": {**good["batch"], "seq": None}},
        "nothing": {"id": "nothing"},
        "no rate": {**good, "id": "no rate", "measured": {}},
    }
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([slice_of_192, *bad.values(), good]))
    assert main(["bench", "accuracy", "--rows", str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["in_use"][0]["rows"] == 2 and set(found["left_out"]) == set(bad) and all(found["left_out"].values())
    path.write_text(json.dumps([*bad.values()]))
    assert main(["bench", "accuracy", "--rows", str(path)]) == 1
    out = capsys.readouterr().out
    assert all(f"not compared: {name}: " in out for name in bad)
