"""Refusals of the cuda target: E0901, at the sentence it cannot do."""

from __future__ import annotations

import pytest

from planc.backends.cuda.refusals.plan import refusals
from planc.checks import check_plan
from planc.diag.errors import PlanError
from planc.lowering import lower_plan
from tests.plans import propagated

from .cases import BF16, FSDP, LAYOUTS, SP, TP, case, plan_of

REFUSED = {
    "state over the tensor axis": (("fsdp 2 > tp 2", TP, "store optimizer over tp"), 8, "batch"),
    "params without optimizer": (("dp 4", "shard batch over dp", "store params over dp"), 8, "optimizer"),
    "parts of blocks under other ranks' keys": (
        ("cp 4", "use cp over cp", "recompute ffn.swiglu"),
        8,
        "recompute blocks",
    ),
    "parts of a compiled block": (("fsdp 4", FSDP, "recompute ffn.swiglu", "compile blocks"), 8, "recompute blocks"),
    "half of the tensor axes": (
        ("a 2 > b 2", "shard heads over a, b", "shard sequence over b in residual"),
        8,
        "together",
    ),
    "a backward in two parts": (
        ("pp 2 > fsdp 2", "split layers over pp as zbv", FSDP, "gather params per pass"),
        7,
        "per pass",
    ),
    "a schedule of another stack": (("pp 2", "split layers over pp as circular"), 7, "zbv"),
    "tokens in unequal pieces": (("fsdp 2 > cp 8", FSDP, "use cp over cp"), 8, "balance = none"),
    "keys of nobody": (("fsdp 4", FSDP, "attention.core as ring"), 8, "use cp"),
    "a ring of another kind": (
        ("cp 4", "shard sequence over cp", "attention.core as ring(rotate = alltoall)"),
        8,
        "rotate",
    ),
    "attention of a ring kept in a compiled block": (
        ("cp 4", "use cp over cp as ring", "recompute blocks except attention.core", "compile blocks"),
        8,
        "all_gather",
    ),
    "blocks run to their end": (("fsdp 4", FSDP, "recompute whole_blocks"), 8, "recompute blocks"),
    "an activation kept": (("fsdp 4", FSDP, "recompute blocks except ffn.swiglu"), 8, "except matmuls"),
    "ops but for one": (("fsdp 4", FSDP, "recompute attention.core, ffn.down except ffn.down"), 8, "blocks except"),
    "a kernel without a reference": (("fsdp 4", FSDP, "attention.core as flex"), 8, "flash"),
    "keys of some ranks": (("a 2 > b 2", "shard heads over a, b", "replicate kv_heads over b"), 8, "together"),
    "blocks replayed for two backwards": (
        ("pp 2 > fsdp 2", FSDP, "split layers over pp as zbv", "recompute blocks"),
        9,
        "1f1b",
    ),
    "parts replayed for two backwards": (
        ("pp 2 > fsdp 2", FSDP, "split layers over pp as interleaved_zero_bubble(chunks = 1)", "recompute attention"),
        9,
        "1f1b",
    ),
    "a kernel for GPUs alone": (("fsdp 4", FSDP, "attention.core as efficient"), 8, "flash"),
    "a kernel and a window": (("fsdp 4", FSDP, "attention.core as flash"), 8, "efficient"),
    "a kernel and other ranks' keys": (
        ("cp 4", "shard sequence over cp", "attention.core as flash"),
        8,
        "all_gather",
    ),
    "replay inside a block around a ring": (
        ("cp 4", "use cp over cp as ring", "recompute attention.core", "compile blocks"),
        9,
        "blocks",
    ),
    "compiled in two parts": (("pp 2 > tp 2", "split layers over pp as zbv", TP, "compile blocks"), 9, "1f1b"),
    "replay inside a compiled block": (
        ("tp 4", "shard heads over tp", "recompute attention.core", "compile blocks"),
        9,
        "blocks",
    ),
    "the optimizer alone elsewhere": (("fsdp 4", FSDP, "offload optimizer to host"), 8, "params, optimizer"),
    "state of nobody elsewhere": (("tp 4", "shard heads over tp", "offload params, optimizer to host"), 8, "fsdp"),
    "overlap of nothing compiled": (("tp 4", TP, SP, "overlap tp as async_matmul"), 9, "compile blocks as inductor"),
    "overlap of another axis": (
        ("fsdp 4", FSDP, "compile blocks as inductor", "overlap fsdp as async_matmul"),
        9,
        "overlap tp",
    ),
    "overlap of two batches": (("tp 4", TP, SP, "overlap tp as dual_batch"), 9, "async_matmul"),
    "narrow inside a dim": (
        ("tp 2", "shard head_dim over tp in projection", BF16, "quantize attention as float8"),
        9,
        "leave the op in bf16",
    ),
    "two axes that meet at one module": (
        ("x 2 > y 2", "shard heads, ffn over x", "shard embed over y in residual"),
        7,
        "merge the axes",
    ),
    "axes for two parts of a block beside float8": (
        ("a 2 > tp 2", "shard heads over a", "shard ffn over tp", BF16, "quantize ffn as float8(rowwise)"),
        5,
        "over one of them",
    ),
    "a ring of another kernel": (("cp 4", "use cp over cp as ring", "attention.core as unfused"), 8, "flash"),
    "a kernel that gathered keys are repeated for": (
        ("cp 4", "use cp over cp", "attention.core as efficient"),
        8,
        "flash",
    ),
    "layers that do not fall into buckets": (
        ("fsdp 4", FSDP, "gather params per pass bucket 3 layers"),
        8,
        "every stage",
    ),
    "buckets of nothing": (("tp 4", TP, "gather params per step bucket 2 layers"), 8, "use fsdp"),
    "one noun in bf16": (
        ("fsdp 4", "shard batch over fsdp", "store params, grads over fsdp", "store optimizer as bf16 over fsdp"),
        9,
        "`store params, grads, optimizer as bf16`",
    ),
    "state that a loss would be scaled for": (
        ("fsdp 4", "shard batch over fsdp", "store params, grads, optimizer as fp16 over fsdp"),
        8,
        "leave out the dtype",
    ),
    "narrow out of fp32": (("fsdp 4", FSDP, "quantize ffn as float8"), 8, "bf16"),
    "narrow by block": (("fsdp 4", FSDP, BF16, "quantize ffn as float8(tile = 8)"), 9, "rowwise"),
    "rows that do not divide": (
        ("fsdp 4", "shard batch over fsdp", "store params, grads, optimizer over fsdp on ffn"),
        8,
        "first dimension",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_at_the_sentence(name: str) -> None:
    (mesh, *sentences), line, help_says = REFUSED[name]
    model = "mistral_micro" if "a window" in name else "llama_micro"
    found = refusals(propagated(plan_of("refused", mesh, *sentences, model=model)))
    assert {d.code for d in found} == {"E0901"}
    assert line in {d.span.line for d in found}
    assert any(help_says in d.help for d in found)


LORA = "lora rank 4 on heads"
BESIDE: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a pipeline": (("pp 2 > fsdp 2", FSDP, "split layers over pp as 1f1b"), 8, "a pipeline"),
    "context parallelism": (("fsdp 2 > cp 2", FSDP, "use cp over cp"), 8, "context parallelism"),
    "narrow matmuls": (("fsdp 4", FSDP, BF16, "quantize ffn as float8(rowwise)"), 9, "float8 matmuls"),
    "compiled blocks": (("fsdp 4", FSDP, "compile blocks as inductor"), 8, "compiled blocks"),
    "state on the host": (("fsdp 4", FSDP, "offload params, optimizer to host"), 8, "state on the host"),
    "prefetch": (("fsdp 4", FSDP, "gather params per pass prefetch 2 layers"), 8, "prefetched layers"),
    "some layers run again": (("fsdp 4", FSDP, "recompute blocks every 2 layers"), 8, "only some layers"),
    "parts of blocks run again": (("fsdp 4", FSDP, "recompute ffn.swiglu"), 8, "is not modelled"),
}


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("sentence", [LORA, "freeze embedding"])
def test_it_refuses_to_fine_tune_beside_what_it_knows_no_program_for(name: str, sentence: str) -> None:
    (mesh, *sentences), line, says = BESIDE[name]
    found = refusals(propagated(plan_of("refused", mesh, *sentences, sentence)))
    assert {d.code for d in found} == {"E0901"}
    assert any(says in d.message and d.span.line == line for d in found)


@pytest.mark.parametrize(
    ("model", "sentences"),
    [
        ("mixtral_micro", ("lora rank 4 on attention",)),
        ("llama_micro", (SP, "shard heads over tp", "lora rank 4 on ffn")),
    ],
)
def test_it_fine_tunes_beside_experts_and_a_divided_sequence(model: str, sentences: tuple[str, ...]) -> None:
    assert refusals(propagated(plan_of("refused", "fsdp 2 > tp 2", FSDP, *sentences, model=model))) == []


@pytest.mark.parametrize("weight", ["w1", "w2"])
def test_an_expert_s_weights_are_divided_alike(weight: str) -> None:
    override = f"override layers.*.moe.experts.{weight} = replicated"
    plan = plan_of("alike", "ep 2", "shard batch over ep", "shard experts over ep", override, model="mixtral_micro")
    (found,) = refusals(propagated(plan))
    assert (found.code, found.span.line) == ("E0901", 9) and f"{weight}.weight is not sharded over ep" in found.message


def test_lower_raises_the_refusals() -> None:
    with pytest.raises(PlanError, match="E0901"):
        lower_plan(check_plan(plan_of("refused", *REFUSED["rows that do not divide"][0])), "cuda")


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_refuses_nothing_that_it_can_do(name: str) -> None:
    assert refusals(propagated(case(name))) == []


TIED: dict[str, tuple[tuple[str, ...], str]] = {
    "over two axes": (
        ("a 2 > tp 2", "shard heads over a", "shard vocab over a in embedding", "shard vocab over tp in head"),
        "a tied table over two of them",
    ),
    "head alone": (("fsdp 2 > tp 2", FSDP, "shard vocab over tp in head"), "is the head's weight too"),
    "lookup alone": (("fsdp 2 > tp 2", FSDP, "shard embed over tp in embedding"), "is the head's weight too"),
    "float8": (
        ("fsdp 4", FSDP, "compute bf16 reduce fp32", "quantize head as float8(rowwise)"),
        "multiplies by the embedding's weight",
    ),
}


@pytest.mark.parametrize("name", TIED)
def test_a_tied_table_is_divided_in_one_way(name: str) -> None:
    sentences, says = TIED[name]
    (found,) = refusals(propagated(plan_of("refused", *sentences, model="llama_micro_tied")))
    assert found.code == "E0901" and says in found.message
