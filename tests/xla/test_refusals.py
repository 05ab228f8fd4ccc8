"""Refusals of the xla target: with a code, at the sentence."""

from __future__ import annotations

import pytest

from planc.backends.xla import BACKEND
from planc.backends.xla.refusals.plan import refusals
from planc.checks import check_plan
from planc.diag import PlanError
from planc.lowering import lower_plan
from tests.plans import propagated
from tests.xla.cases import FSDP, FSDP_TP, SP, TP, plan_of, sharded


def test_a_layout_of_this_target_is_not_refused() -> None:
    assert refusals(sharded("fsdp_tp_sp")) == []
    assert lower_plan(check_plan(sharded("fsdp_tp_sp").plan), "xla").target == "xla"


def test_a_pipeline_is_refused_by_its_sentence() -> None:
    of = propagated(plan_of("pipe", "pp 2 > fsdp 2", FSDP, "split layers over pp as zbv"))
    (found,) = refusals(of)
    assert found.code == "E0901"
    assert "split layers over pp as zbv" in found.message
    assert found.span.line == of.plan.split.cause.span.line
    with pytest.raises(PlanError):
        lower_plan(check_plan(of.plan), "xla")


@pytest.mark.parametrize("sentence", ["freeze embedding", "lora rank 4 on heads"])
def test_fine_tuning_is_refused_by_its_sentence(sentence: str) -> None:
    (found,) = refusals(propagated(plan_of("tuned", "fsdp 4", FSDP, sentence)))
    assert found.code == "E0901" and sentence in found.message


PIPE = ("pp 2 > fsdp 2", FSDP)


@pytest.mark.parametrize(
    ("layout", "why", "nearest"),
    [
        ((*PIPE, "split layers over pp as zbv"), "one program on all", "interleaved_1f1b(chunks = 2)"),
        (
            (*PIPE, "split layers over pp as interleaved_zero_bubble"),
            "compute the first twice",
            "interleaved_1f1b(chunks = 2)",
        ),
        ((*PIPE, "split layers over pp as dualpipev"), "different actions at a time", "interleaved_1f1b(chunks = 2)"),
        (
            (*PIPE, "use pp over pp as gpipe", "gather params per microbatch"),
            "between the forward and the backward",
            "per step",
        ),
        (("cp 2", "shard sequence over cp", "attention.core as ring(rotate = alltoall)"), "rank to rank", "rotate"),
        (("fsdp 2", FSDP, "attention.core as cudnn"), "no such kernel", "attention.core as splash"),
        (("fsdp 2 > tp 2", FSDP, "attention.core as splash"), "every rank of tp would compute the same", "as unfused"),
        (("fsdp 2", FSDP, "attention.core as splash(block = 96)"), "128 rows of a sequence are no multiple", "block"),
        (
            ("cp 2", "shard sequence over cp", "attention.core as unfused"),
            "how a rank gets the keys",
            "use cp over AXIS",
        ),
        (("fsdp 2", FSDP, "quantize ffn as float8(blockwise)"), "a scale per tile", "row or tensor"),
        (("fsdp 2", FSDP, "quantize ffn as int8(tile = 128)"), "a scale per tile", "row or tensor"),
        (("fsdp 2", FSDP, "quantize ffn as float4"), "no matmuls in float4", "`int8`"),
        (
            (*PIPE, "use pp over pp as 1f1b", "quantize head as float8"),
            "shard the rows of head",
            "leave head in the compute dtype",
        ),
        (
            (*PIPE, "use pp over pp as gpipe", "quantize ffn as int8 except layers 0"),
            "differ by rank",
            "leave `except layers` out",
        ),
        (
            ("fsdp 2", FSDP, "recompute blocks every 2 layers", "quantize ffn as float8 except layers 0"),
            "allow no other exceptions",
            "leave `every` out",
        ),
        (("fsdp 2", FSDP, "attention.core as ring"), "no axis shards the sequence", "use cp over AXIS"),
        (("fsdp 2", FSDP, "recompute whole_blocks"), "what no gradient reads", "`recompute blocks`"),
        (
            (*PIPE, "use pp over pp as gpipe", "recompute blocks every 4 layers"),
            "begin elsewhere on each",
            "divides the layers per stage",
        ),
        (
            (*PIPE, "split layers over pp as 1f1b stages [1, 3]", "recompute blocks every 2 layers"),
            "shorter stages",
            "the same number of layers",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_nearest(layout: tuple[str, ...], why: str, nearest: str) -> None:
    (found,) = refusals(propagated(plan_of("refused", *layout)))
    assert found.code == "E0901" and why in found.message and nearest in found.help, found


def test_rows_that_ranks_cannot_share_are_refused() -> None:
    of = propagated(
        plan_of("pipe", "pp 4 > tp 2", "use pp over pp as 1f1b", TP, SP, batch="8 x 20 tokens microbatch 2")
    )
    (found,) = refusals(of)
    assert "20 tokens cannot be split into 8 equal shards" in found.message and "multiple of 8" in found.help


def test_a_pipeline_of_several_kinds_of_layers_is_refused() -> None:
    of = propagated(plan_of("kinds", *PIPE, "use pp over pp as 1f1b", model="deepseek_micro"))
    assert ["2 kinds of layers" in f.message for f in refusals(of)] == [True]


def test_tokens_that_do_not_fall_into_pieces_are_refused() -> None:
    of = propagated(plan_of("odd", "cp 4", "use cp over cp", batch="8 x 20 tokens microbatch 2"))
    assert ["8 equal chunks" in f.message for f in refusals(of)] == [True]


def test_uneven_parts_are_refused_with_the_numbers() -> None:
    of = propagated(plan_of("uneven", "fsdp 2 > tp 4", FSDP, "shard ffn over tp"))
    (found,) = refusals(of)
    assert found.code == "E0901" and "182 is no multiple of 4" in found.message


def test_a_kernel_takes_whole_vectors_of_the_rows_that_ranks_divide() -> None:
    layout = ("fsdp 2 > cp 4", FSDP, "use cp over cp", "attention.core as flash")
    (found,) = refusals(propagated(plan_of("kernel", *layout)))
    assert found.code == "E0901" and "6 rows per call of the kernel are no multiple" in found.message
    assert refusals(propagated(plan_of("kernel", *layout, batch="8 x 512 tokens microbatch 2"))) == []


def test_a_ring_takes_a_piece_of_its_rows_at_a_time() -> None:
    ring = ("cp 4", "use cp over cp as ring", "attention.core as splash")
    (found,) = refusals(propagated(plan_of("ring", *ring, batch="8 x 512 tokens microbatch 2")))
    assert "64 rows" in found.message
    assert refusals(propagated(plan_of("ring", *ring, batch="8 x 1024 tokens microbatch 2"))) == []


@pytest.mark.parametrize(
    ("layout", "model", "why"),
    [
        (
            ("pp 2 > fsdp 2", FSDP, "use pp over pp as gpipe", "offload optimizer to host"),
            "llama_micro",
            "sharded over",
        ),
        ((*FSDP_TP, "recompute blocks every 2 layers", "offload hidden to host"), "llama_micro", "what others offload"),
        (
            ("fsdp 4", FSDP, "recompute blocks except moe.gate", "offload moe.gate to host"),
            "mixtral_micro",
            "per-rank code",
        ),
    ],
)
def test_what_cannot_rest_on_the_host_is_refused(layout: tuple[str, ...], model: str, why: str) -> None:
    (found,) = refusals(propagated(plan_of("away", *layout, model=model)))
    assert found.code == "E0901" and "offload" in found.message and why in found.message


@pytest.mark.parametrize("more", ["bucket 2 layers", "prefetch 2 layers"])
def test_groups_of_layers_are_refused(more: str) -> None:
    of = propagated(plan_of("grouped", *FSDP_TP, f"gather params per pass {more}"))
    (found,) = refusals(of)
    assert found.code == "E0901" and "scheduler" in found.message


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("store optimizer as fp16", "it stores optimizer in fp32 or bf16, not fp16"),
        ("store params as float8", "it stores params in fp32 or bf16, not float8"),
        ("store optimizer as bf16 for experts", "and not those of experts in another"),
    ],
)
def test_other_dtypes_of_state_are_refused(sentence: str, why: str) -> None:
    of = propagated(plan_of("narrow", "dp 4", "use ddp over dp", sentence, model="mixtral_micro"))
    (found,) = refusals(of)
    assert found.code == "E0901" and why in found.message and "leave out the dtype" in found.help


def test_compiled_regions_are_noted_and_not_refused() -> None:
    of = propagated(plan_of("compiled", *FSDP_TP, "compile blocks, loss"))
    assert refusals(of) == []
    (note,) = BACKEND.notes(of)
    assert note.code == "N0906" and "compile blocks, loss" in note.message


def test_parts_of_heads_are_refused() -> None:
    """XLA divides a projection in blocks of whole heads: three of two ranks would be one and a half."""
    within, model = "shard head_dim over tp in projection", "llama_micro(heads = 6, kv_heads = {}, head_dim = 16)"
    for heads, why in ((3, "3 kv_heads are no multiple of 2"), (2, ""), (1, "")):
        of = propagated(plan_of("parts", "tp 2", within, model=model.format(heads)))
        assert [why in d.message and "head_dim" in d.message for d in refusals(of)] == ([True] if why else [])
