"""The semantic collectives follow from the layouts, in the numbers that torch was seen to issue."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planc.costing.step.section_cost import stage_boundary_s
from planc.costing.step.transfers import LinkTimes
from planc.driver import load
from planc.frameworks import stack_of
from planc.ir.plan import Plan
from planc.sharding.collectives import semantic_collectives
from planc.sharding.recompute import close, replay
from planc.sharding.redistribute import steps_between
from tests.plans import BODY, HEAD, cpu_plan, plan_of, propagated


def counts(plan: Plan, carries: str = "activation") -> Counter[tuple[str, str]]:
    total: Counter[tuple[str, str]] = Counter()
    for row in semantic_collectives(propagated(plan)):
        if row.carries == carries:
            total[row.op, row.axis] += row.count
    return total


@pytest.mark.parametrize("layers", [2, 32])
def test_tensor_and_sequence_parallel_llama(tmp_path: Path, layers: int) -> None:
    """A traced torch step issued 4L+2 gathers and scatters over tp; 2L+1 norms reduce over it."""
    head = HEAD.replace("llama3_8b", f"llama3_8b(layers = {layers})").replace("batch     64", "batch     8")
    plan = plan_of(tmp_path, head + BODY.replace("recompute blocks", "recompute none"))
    assert counts(plan) == {
        ("all_gather", "tp"): 4 * layers + 2,
        ("reduce_scatter", "tp"): 4 * layers + 2,
        ("all_reduce", "tp"): 3,
    }
    assert counts(plan, "grad")["all_reduce", "tp"] == 2 * layers + 1


def test_recompute_replays_gathers_and_stops_early(tmp_path: Path) -> None:
    """With whole blocks replayed: 6L+2 gathers and 5L+2 scatters; the last projection is not run again."""
    plan = plan_of(tmp_path, HEAD.replace("batch     64", "batch     8") + BODY)
    layers = plan.model.layers
    assert counts(plan)["all_gather", "tp"] == 6 * layers + 2
    assert counts(plan)["reduce_scatter", "tp"] == 5 * layers + 2
    assert "ffn.down" not in replay(plan).ops and "attention.out" in replay(plan).ops


def test_whole_blocks_run_to_their_end(tmp_path: Path) -> None:
    """The last projection too, and the scatter behind it; what is kept is the same."""
    plan = plan_of(tmp_path, HEAD.replace("batch     64", "batch     8") + BODY.replace("blocks", "whole_blocks"))
    early = plan_of(tmp_path, HEAD.replace("batch     64", "batch     8") + BODY)
    assert set(replay(plan).ops) == {op.name for op in plan.model.ops["block"]} > set(replay(early).ops)
    assert replay(plan).saved == replay(early).saved
    assert counts(plan)["reduce_scatter", "tp"] == 6 * plan.model.layers + 2


def test_outputs_of_experts_that_are_weighed_are_made_again(tmp_path: Path) -> None:
    """MaxText and transformers multiply what experts made by the tokens' weights, whose gradients need it."""
    text = HEAD.replace("llama3_8b", "mixtral_8x7b") + BODY
    own, weighs = (replay(plan_of(tmp_path, text + words)) for words in ("", "realise as maxtext\n"))
    assert set(weighs.ops) - set(own.ops) == {"moe.down"} and weighs.saved == own.saved
    kept = replay(plan_of(tmp_path, text.replace("blocks", "blocks except moe.down") + "realise as maxtext\n"))
    assert "moe.returned" in kept.saved


def test_tensor_parallel_without_sequence_parallel_reduces(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD.replace("batch     64", "batch     8") + "use fsdp over fsdp\nuse tp over tp\n")
    layers = plan.model.layers
    assert counts(plan) == {("all_reduce", "tp"): 2 * layers + 1 + 2 * layers + 1 + 3}
    assert ("all_reduce", "tp") not in counts(plan, "grad")


def test_a_score_for_each_head_has_its_whole_gradient_on_its_rank(tmp_path: Path) -> None:
    """The tensor axis divides the key heads of the same op too; the score's gradient is no sum over it."""
    head = HEAD.replace("llama3_8b", "gpt_oss_20b(layers = 2)").replace("batch     64", "batch     8")
    plan = plan_of(tmp_path, head + "use fsdp over fsdp\nshard heads, vocab over tp\n")
    (scores,) = (p for p in propagated(plan).params if p.param.name.endswith("head_sinks.weight"))
    assert scores.compute == (("tp",),) and scores.grad_partial == ("fsdp",)


def test_where_gradients_rest_decides_how_they_are_reduced(tmp_path: Path) -> None:
    head = HEAD.replace("fsdp 8 > tp 8", "r 8 > f 8")
    kinds = {
        "use ddp over r, f": {("all_reduce", "r+f")},
        "use fsdp over r, f": {("reduce_scatter", "r+f")},
        "use hsdp over r, f": {("reduce_scatter", "f"), ("all_reduce", "r")},
        "use zero1 over r, f": {("reduce_scatter", "r+f")},
    }
    for line, expected in kinds.items():
        assert set(counts(plan_of(tmp_path, head + line + "\n"), "grad")) == expected, line


def test_zero1_reduces_and_gathers_once_a_step(tmp_path: Path) -> None:
    head = HEAD.replace("fsdp 8 > tp 8", "dp 64").replace("batch     64", "batch     256")
    plan = plan_of(tmp_path, head + "use zero1 over dp\n")
    rows = [r for r in semantic_collectives(propagated(plan)) if r.carries in ("param", "grad")]
    per_copy = {r.count / (plan.model.layers if r.section == "block" else 1) for r in rows}
    assert plan.microbatches == 4 and per_copy == {1}


def test_tensor_parallel_on_head_dim_gathers_before_the_softmax(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD + "use fsdp over fsdp\nshard head_dim over tp in attention\nshard ffn over tp\n")
    gathered = [r.tensor for r in semantic_collectives(propagated(plan)) if r.op == "all_gather" and r.axis == "tp"]
    assert {"attention.q_rotated", "attention.k_rotated", "attention.v"} <= set(gathered)


def test_a_hidden_state_that_ranks_hold_whole_is_sent_in_parts_on_older_chips(tmp_path: Path) -> None:
    """Megatron on A100s (Narayanan et al. 2021, section 4.1); with sequence parallelism a rank holds its part alone."""
    head = HEAD.replace("fsdp 8 > tp 8", "pp 4 > data 2 > tp 8").replace("8 x h100_node", "8 x a100_node")
    rest = "shard batch over data\nuse tp over tp\nsplit layers over pp as 1f1b\n"

    def sent(text: str) -> float:
        rows = semantic_collectives(propagated(plan_of(tmp_path, text)))
        return next(row.buffer_bytes for row in rows if row.op == "send_recv")

    whole = 8192 * 4096 * 4  # fp32
    assert sent(head + rest) == whole == sent(head.replace("a100", "h100") + rest + "realise as megatron\n")
    assert sent(head + rest + "realise as megatron\n") == whole / 8
    assert sent(head + rest + "use sp over tp\nrealise as megatron\n") == whole / 8


def test_the_parts_of_a_hidden_state_are_gathered_behind_the_boundary(tmp_path: Path) -> None:
    head = HEAD.replace("fsdp 8 > tp 8", "pp 4 > data 2 > tp 8").replace("8 x h100_node", "8 x a100_node")
    plan = plan_of(
        tmp_path, head + "shard batch over data\nuse tp over tp\nsplit layers over pp as 1f1b\nrealise as megatron\n"
    )
    links, whole = LinkTimes(), 8192.0 * 4096 * 2
    sent_s = sum(links.call_s(plan, "send_recv", whole / 8, ("pp",)))
    gathered_s = sum(links.call_s(plan, "all_gather", whole, ("tp",)))
    assert stage_boundary_s(plan, stack_of(plan), whole, links) == pytest.approx(sent_s + gathered_s)


def test_pipeline_sends_once_per_boundary_and_microbatch() -> None:
    plan = load("plans/llama3_70b_h100.plan")
    sends: Counter[str] = Counter()
    for row in semantic_collectives(propagated(plan)):
        if row.op == "send_recv":
            sends[row.phase] += row.count
    boundaries = len(plan.stages) - 1
    assert sends == {"forward": boundaries * plan.microbatches, "backward": boundaries * plan.microbatches}


LAYOUTS = st.dictionaries(
    st.sampled_from(["batch", "sequence", "embed"]),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=2, unique=True).map(tuple),
    max_size=3,
).filter(lambda layout: len({a for axes in layout.values() for a in axes}) == sum(map(len, layout.values())))


@given(LAYOUTS, LAYOUTS)
@settings(max_examples=300, deadline=None)
def test_moving_there_and_back_is_dual(before: Any, after: Any) -> None:
    """A gather is undone by a slice or scatter of the same axes, an all-to-all by its turned self."""
    there = steps_between(before, (), after)
    back = steps_between(after, (), before)
    dual = {"all_gather": "slice", "slice": "all_gather", "all_to_all": "all_to_all"}
    turned = {(dual[s.kind], frozenset(s.axes)) for s in there}
    assert turned == {(s.kind, frozenset(s.axes)) for s in back}


@given(LAYOUTS, st.sets(st.sampled_from("xyz"), max_size=2))
@settings(max_examples=200, deadline=None)
def test_partial_sums_are_always_reduced(before: Any, partial: set[str]) -> None:
    steps = steps_between(before, tuple(sorted(partial)), before)
    assert {a for s in steps for a in s.axes} == partial
    assert all(s.kind == "all_reduce" for s in steps)


@given(LAYOUTS, LAYOUTS, st.sets(st.sampled_from("xyz"), max_size=2))
@settings(max_examples=200, deadline=None)
def test_a_tensor_is_gathered_after_it_is_reduced_and_exchanged(before: Any, after: Any, partial: set[str]) -> None:
    """So that no step moves what another one has made larger."""
    kinds = [s.kind for s in steps_between(before, tuple(sorted(partial)), after)]
    first = kinds.index("all_gather") if "all_gather" in kinds else len(kinds)
    assert set(kinds[first:]) <= {"all_gather", "slice"}


def moved(mesh: str) -> Counter[tuple[Any, ...]]:
    """Bytes by operation, axis and phase of experts that tp divides beside the axis that exchanges their tokens."""
    found: Counter[tuple[Any, ...]] = Counter()
    sentences = ("use ddp over ep", "use sp over tp", "use ep over ep", "use etp over tp")
    plan = cpu_plan("one", mesh, *sentences, model="mixtral_micro(layers = 2)", batch="2 x 16 tokens")
    for row in semantic_collectives(propagated(plan)):
        found[row.op, tuple(sorted(row.axes)), row.phase] += round(row.payload_bytes)
    return found


def test_the_order_of_axes_changes_no_bytes() -> None:
    there, turned = moved("tp 2 > ep 2"), moved("ep 2 > tp 2")
    assert there == turned
    rows = 2 * 16 // 4 * 2  # tokens of a rank, two experts each
    width = 64 * 4  # bytes of a row
    assert there["all_to_all", ("ep",), "forward"] == 2 * 2 * rows * width  # two layers, there and back


def test_gradients_of_whole_keys_are_summed_over_the_ranks_of_their_heads() -> None:
    """Each rank has a part of the query heads and all keys: the gradients of keys and values are summed, by hand."""
    sentences = ("shard heads over tp", "replicate kv_heads over tp")
    plan = cpu_plan("one", "tp 4", *sentences, model="llama_micro(kv_heads = 2)", batch="2 x 16 tokens")
    rows = [r for r in semantic_collectives(propagated(plan)) if r.tensor in ("attention.k_rotated", "attention.v")]
    assert {(r.op, r.axes, r.phase, r.tensor) for r in rows} == {
        ("all_reduce", ("tp",), "backward", "attention.k_rotated"),
        ("all_reduce", ("tp",), "backward", "attention.v"),
    }
    layers, tokens, width = 4, 16, 2 * 8 * 4  # two microbatches of one sequence; two heads of 8 numbers in fp32
    assert {(r.count, r.buffer_bytes) for r in rows} == {(2 * layers, tokens * width)}


def test_keeping_everything_replays_nothing() -> None:
    plan = load("plans/llama3_70b_h100.plan")
    assert close(plan.model, plan.model.ops["block"], set()).ops == ()
