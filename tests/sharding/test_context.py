"""A divided sequence: keys and values gathered, passed round a ring, or exchanged for heads."""

from __future__ import annotations

from math import isclose
from pathlib import Path

import pytest

from planc.costing.compute.flops import imbalance, op_flops
from planc.driver import load
from planc.ir.collective import Collective
from planc.sharding.collectives import semantic_collectives
from tests.plans import propagated

TEXT = """plan example
model     llama3_8b(layers = 4)
batch     2 x 32768 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 2 > cp 4
shard     batch    over fsdp
shard     sequence over cp
store     params, grads, optimizer over fsdp, cp
compute   bf16 reduce fp32
recompute none
"""
LAYERS, RANKS = 4, 4
KEYS = 32768 * 8 * 128 * 2
"""Bytes of one layer's keys, or values, of a whole sequence in bf16."""


def activations(tmp_path: Path, text: str) -> list[Collective]:
    path = tmp_path / "example.plan"
    path.write_text(text)
    rows = semantic_collectives(propagated(load(path)))
    return [r for r in rows if r.carries == "activation" and "cp" in r.axes]


def test_keys_and_values_are_gathered(tmp_path: Path) -> None:
    """And their gradients, sums over all rows that looked, are scattered. Queries stay where they are."""
    rows = activations(tmp_path, TEXT + "attention.core as all_gather\n")
    assert {(r.op, r.phase) for r in rows} == {("all_gather", "forward"), ("reduce_scatter", "backward")}
    assert {r.count for r in rows} == {LAYERS} and len(rows) == 4
    assert {r.buffer_bytes for r in rows} == {KEYS}


def test_a_ring_passes_them_on(tmp_path: Path) -> None:
    """n - 1 hand-overs of a block forward, as many backward, and n of the gradients."""
    rows = activations(tmp_path, TEXT + "attention.core as ring\n")
    assert {r.op for r in rows} == {"send_recv"}
    assert {r.buffer_bytes for r in rows} == {KEYS / RANKS}
    forward = sum(r.count for r in rows if r.phase == "forward")
    gradients = sum(r.count for r in rows if r.tensor.endswith("gradient"))
    assert forward == 2 * LAYERS * (RANKS - 1) and gradients == 2 * LAYERS * RANKS


def test_heads_are_exchanged_for_tokens(tmp_path: Path) -> None:
    """Ulysses: queries, keys and values in, the result out, and the duals; nothing is gathered."""
    rows = activations(tmp_path, TEXT + "shard heads over cp in attention\n")
    assert {r.op for r in rows} == {"all_to_all"}
    assert sum(r.count for r in rows if r.phase == "forward") == 4 * LAYERS
    queries = [r.buffer_bytes for r in rows if r.tensor == "attention.q"]
    assert set(queries) == {32768 / RANKS * 32 * 128 * 2}


def test_heads_are_sliced_before_they_are_exchanged(tmp_path: Path) -> None:
    """Where only attention has its heads over the tensor axis too: as many bytes go there as come back."""
    text = TEXT.replace("cp 4", "cp 2 > tp 2") + "shard heads over tp, cp in attention\n"
    rows = [r for r in activations(tmp_path, text) if r.op == "all_to_all"]
    queries = {r.phase: r.buffer_bytes for r in rows if r.tensor == "attention.q"}
    assert queries == dict.fromkeys(("forward", "backward"), 32768 / 2 * 32 / 2 * 128 * 2)


@pytest.mark.parametrize(("sentence", "factor"), [("", 7 / 4), ("attention.core as ring(balance = none)\n", 7 / 4)])
def test_rows_in_order_leave_the_last_rank_the_most_work(tmp_path: Path, sentence: str, factor: float) -> None:
    """Four ranks: the last sees 7/8 of the keys, the mean is 1/2."""
    path = tmp_path / "example.plan"
    path.write_text(TEXT + sentence)
    uneven = propagated(load(path))
    path.write_text(TEXT + "attention.core as ring(balance = headtail)\n")
    even = propagated(load(path))
    core = "attention.core"
    assert imbalance(uneven.plan, uneven.op[core]) == factor and imbalance(even.plan, even.op[core]) == 1
    assert isclose(op_flops(uneven, uneven.op[core]), factor * op_flops(even, even.op[core]))


def test_the_ring_runs_beside_attention(tmp_path: Path) -> None:
    """At 32,768 tokens attention takes longer than the hand-overs: they are exposed by what they slow down alone."""
    from planc.driver import check, load

    path = tmp_path / "example.plan"
    path.write_text(TEXT + "attention.core as ring\n")
    rows = [r for r in check(path).collectives or () if r.row.op == "send_recv"]
    taken = load(path).cluster.chip.contention * sum(r.time_s for r in rows)
    assert sum(r.exposed_s for r in rows) == pytest.approx(taken) and taken > 0
