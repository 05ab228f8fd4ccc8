"""Seconds of a sync of weights, for pairs of layouts from training and serving: near the bound, and the sum of a hand
calculation."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from planc.costing.weight_sync import BUCKET_BYTES, sync_time
from planc.ir.serve_report import SyncTime
from planc.ir.sharding import Sharded
from planc.sharding.shard_intervals import declared_layout
from planc.sharding.transfers import WeightTransfer, transfer
from tests.plans import sharded_of as layouts_of

PLAN = """plan side
model     {model}
batch     2048 x 4096 tokens microbatch 1
cluster   {cluster}
mesh      {mesh}
compute   bf16 reduce fp32
optimizer adamw
{layout}
"""
FSDP, TP, PP = "use fsdp over fsdp", "use tp over tp", "split layers over pp as 1f1b"
SERVED = f"shard batch over dp\n{TP}"


def trained_experts(outer: int, ep: int) -> str:
    return f"view edp {outer} > ep {ep} of dp for experts\nuse zero1 over dp\nuse ep over ep"


def served_experts(ep: int) -> str:
    return f"view ep {ep} of dp for experts\nshard batch over dp\nshard experts over ep"


class Pair(NamedTuple):
    """Nodes, mesh and layout of a trainer and of a generator. If `colocated` they have the same devices."""

    model: str
    trainer: tuple[int, str, str]
    generator: tuple[int, str, str]
    colocated: bool
    most: float = 1.1
    """The seconds, as a multiple of the lower bound."""
    node: str = "h100_node"


DEEPSEEK = (256, "pp 16 > dp 128", f"{PP}\n{trained_experts(2, 64)}")
PAIRS = {
    "8b, replicas": Pair("llama3_8b", (1, "fsdp 8", FSDP), (1, "dp 8", "shard batch over dp"), True),
    "8b, tp 2": Pair("llama3_8b", (1, "fsdp 8", FSDP), (1, "dp 4 > tp 2", SERVED), True),
    "8b, tp 8": Pair("llama3_8b", (1, "fsdp 8", FSDP), (1, "tp 8", TP), True),
    "8b, apart": Pair("llama3_8b", (2, "fsdp 16", FSDP), (2, "dp 4 > tp 4", SERVED), False),
    "8b, tp to tp": Pair("llama3_8b", (4, "fsdp 4 > tp 8", f"{FSDP}\n{TP}"), (1, "tp 8", TP), False),
    "qwen 8b": Pair("qwen3_8b", (2, "fsdp 16", FSDP), (1, "dp 4 > tp 2", SERVED), False),
    "qwen 32b": Pair("qwen3_32b", (4, "fsdp 4 > tp 8", f"{FSDP}\n{TP}"), (2, "dp 2 > tp 8", SERVED), False),
    "qwen 32b, colocated": Pair("qwen3_32b", (4, "fsdp 4 > tp 8", f"{FSDP}\n{TP}"), (4, "dp 4 > tp 8", SERVED), True),
    "70b, fsdp": Pair("llama3_70b", (8, "fsdp 64", FSDP), (4, "dp 4 > tp 8", SERVED), False),
    "70b, 2d": Pair("llama3_70b", (8, "fsdp 8 > tp 8", f"{FSDP}\n{TP}"), (8, "dp 16 > tp 4", SERVED), True),
    "70b, 2d, apart": Pair("llama3_70b", (8, "fsdp 8 > tp 8", f"{FSDP}\n{TP}"), (4, "dp 4 > tp 8", SERVED), False),
    "70b, 3d": Pair(
        "llama3_70b", (16, "pp 4 > fsdp 4 > tp 8", f"{PP}\n{FSDP}\n{TP}"), (16, "dp 16 > tp 8", SERVED), True
    ),
    "70b, 3d, apart": Pair(
        "llama3_70b", (16, "pp 4 > fsdp 4 > tp 8", f"{PP}\n{FSDP}\n{TP}"), (8, "dp 8 > tp 8", SERVED), False
    ),
    "235b": Pair("qwen3_235b_a22b", (16, "dp 128", trained_experts(4, 32)), (4, "dp 32", served_experts(32)), False),
    "235b, more": Pair(
        "qwen3_235b_a22b", (16, "dp 128", trained_experts(8, 16)), (8, "dp 64", served_experts(64)), False
    ),
    "mixtral, colocated": Pair(
        "mixtral_8x7b", (1, "dp 8", trained_experts(2, 4)), (1, "dp 8", served_experts(8)), True
    ),
    "deepseek, 256": Pair("deepseek_v3", DEEPSEEK, (32, "dp 256", served_experts(256)), False, node="h800_node"),
    "deepseek, 32": Pair("deepseek_v3", DEEPSEEK, (4, "dp 32", served_experts(32)), False, node="h800_node"),
    "deepseek, smaller": Pair(
        "deepseek_v3",
        (32, "pp 4 > dp 64", f"{PP}\n{trained_experts(2, 32)}"),
        (8, "dp 64", served_experts(64)),
        False,
        node="h800_node",
    ),
    "mixtral": Pair("mixtral_8x7b", (4, "dp 32", trained_experts(4, 8)), (1, "dp 8", served_experts(8)), False),
}
"""In twenty pairs the ranks of a node lack equal shares."""
UNEVEN = {
    "8b, colocated": Pair("llama3_8b", (2, "fsdp 16", FSDP), (2, "dp 8 > tp 2", SERVED), True, most=1.8),
    "32b, colocated": Pair("qwen3_32b", (4, "fsdp 32", FSDP), (4, "dp 8 > tp 4", SERVED), True, most=1.5),
    "70b, colocated": Pair("llama3_70b", (8, "fsdp 64", FSDP), (8, "dp 8 > tp 8", SERVED), True, most=1.25),
    "235b, colocated": Pair(
        "qwen3_235b_a22b",
        (4, "pp 2 > dp 16", f"{PP}\n{trained_experts(2, 8)}"),
        (4, "dp 32", served_experts(32)),
        True,
        most=1.9,
    ),
}
"""Rows that a node's shards of FSDP have are those that one of its ranks wants: the other ranks receive all that comes
from the network, each over its own uplink, and no rank receives for another that does not want it. Experts that half
of a stage's ranks have are wanted on other nodes, and those of the other half on their own, so one half sends all."""


def side(model: str, node: str, one: tuple[int, str, str]) -> Sharded:
    count, mesh, layout = one
    with tempfile.TemporaryDirectory() as folder:
        return layouts_of(Path(folder), PLAN.format(model=model, cluster=f"{count} x {node}", mesh=mesh, layout=layout))


@cache
def synced(name: str) -> tuple[WeightTransfer, SyncTime]:
    pair = (PAIRS | UNEVEN)[name]
    one, other = (side(pair.model, pair.node, s) for s in (pair.trainer, pair.generator))
    moved = transfer(one, other, declared_layout, colocated=pair.colocated, wire_bytes=lambda _: 2)
    return moved, sync_time(moved, (one.plan.cluster, other.plan.cluster))


@pytest.mark.parametrize("name", [*PAIRS, *UNEVEN])
def test_seconds_are_near_the_bound(name: str) -> None:
    _, found = synced(name)
    assert 0 < found.bound_s <= found.seconds <= (PAIRS | UNEVEN)[name].most * found.bound_s
    assert found.seconds == max(found.near_s, found.far_s) + found.start_s
    assert (PAIRS | UNEVEN)[name].colocated or found.gathered_s > 5 * found.seconds


def test_seconds_of_one_pair_by_hand() -> None:
    """Llama 3 8B from 16 to 16 others of 4 x tp 4: each of the two nodes receives 8.03e9 parameters in bf16 over its
    eight 50 GB/s uplinks at 0.95, each rank a quarter."""
    moved, found = synced("8b, apart")
    into = [sum(load.far_in for rank, load in moved.loads.items() if rank // 8 == node) for node in (2, 3)]
    model_bytes = 2 * 8_030_261_248
    assert into == [model_bytes] * 2
    assert moved.model_bytes == model_bytes
    ranks = moved.loads[16]
    assert found.staging_bytes >= ranks.near_in + ranks.far_in > model_bytes / 4
    assert found.busiest_bytes == model_bytes and found.busiest != "nvlink4"
    assert found.start_s < 0.05 * found.seconds


def test_a_share_of_the_bytes_takes_that_share_of_the_seconds() -> None:
    moved, whole = synced("8b, tp to tp")
    clusters = tuple(side("llama3_8b", "h100_node", s).plan.cluster for s in PAIRS["8b, tp to tp"][1:3])
    part = sync_time(moved, (clusters[0], clusters[1]), share=0.25)
    assert part.far_s == pytest.approx(whole.far_s / 4) and part.bound_s == pytest.approx(whole.bound_s / 4)
    fewer = sync_time(moved, (clusters[0], clusters[1]), bucket_bytes=2 * BUCKET_BYTES)
    assert fewer.far_s == whole.far_s and fewer.start_s != whole.start_s


def test_a_generator_that_holds_all_receives_nothing() -> None:
    one = side("llama3_8b", "h100_node", (1, "tp 8", TP))
    moved = transfer(one, one, declared_layout, colocated=True, wire_bytes=lambda _: 2)
    found = sync_time(moved, (one.plan.cluster, one.plan.cluster))
    assert (found.seconds, found.bound_s, found.staging_bytes) == (0.0, 0.0, 0.0)
