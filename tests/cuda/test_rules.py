"""The realisation rules against counts and bytes that were measured before the rules were written.

A Llama of 8B shapes, sequences of 8192, was traced under a fake process group: forward, backward and
clipping of one step, without the mean of the loss.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.predict import dimension_of, predicted
from planc.backends.cuda.rules import ORDER, realise
from planc.backends.cuda.rules.pipeline_keeps_state import gathers
from planc.ir.collective import Collective
from planc.ir.plan import Optimizer
from planc.pipeline.actions import Action, unrolled
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.schedules import schedules
from planc.sharding.collectives import semantic_collectives
from tests.plans import propagated

from .cases import MATMULS, SP, TP, plan_of

MIB = 2**20
FSDP = ("fsdp {} > tp 8", "use fsdp over fsdp", TP, SP)


def rows_of(
    layers: int, mesh: str, *sentences: str, ranks: int = 8, model: str = "llama3_8b"
) -> tuple[Collective, ...]:
    """Realised rows of an 8B-shaped model with one microbatch."""
    plan = plan_of(
        "measured",
        mesh,
        *sentences,
        model=f"{model}(layers = {layers})",
        batch=f"{ranks} x 8192 tokens microbatch 1",
    )
    sharded = propagated(plan)
    return realise(sharded, semantic_collectives(sharded))


def calls(rows: tuple[Collective, ...]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[row.op, row.axis] += 0 if row.tensor == "loss" else row.count
    return found


def mib(rows: tuple[Collective, ...], op: str, axis: str) -> float:
    return sum(r.payload_bytes for r in rows if (r.op, r.axis) == (op, axis)) / MIB


@pytest.mark.parametrize("layers", [2, 4, 32])
def test_calls_of_fsdp_and_tp(layers: int) -> None:
    mesh, *sentences = FSDP
    found = calls(rows_of(layers, mesh.format(8), *sentences))
    assert found == {
        ("all_gather", "fsdp"): 2 * layers + 3,
        ("reduce_scatter", "fsdp"): layers + 2,
        ("all_gather", "tp"): 4 * layers + 2,
        ("reduce_scatter", "tp"): 4 * layers + 2,
        ("all_reduce", "tp"): 2 * layers + 5,
        ("all_reduce", "fsdp"): 1,
    }


def test_a_tied_table_is_gathered_and_reduced_once() -> None:
    """One group of both ends; between the ends of a pipeline one sum of what rests, in fp32."""
    mesh, *sentences = FSDP
    found = calls(rows_of(4, mesh.format(8), *sentences, model="llama3_2_1b"))
    assert found["all_gather", "fsdp"] == 2 * 4 + 1 and found["reduce_scatter", "fsdp"] == 4 + 1
    stages = ("pp 4 > fsdp 2", "use fsdp over fsdp", "split layers over pp as 1f1b", "compute bf16 reduce bf16")
    rows = rows_of(4, *stages, ranks=8, model="llama3_2_1b")
    sums = [r for r in rows if r.section == "step" and r.carries == "grad"]
    assert [(r.stage, r.op, r.group_size, r.dtype, r.count) for r in sums] == [
        (stage, "all_reduce", 2, "fp32", 1) for stage in (0, 3)
    ]
    assert {r.payload_bytes for r in sums} == {128256 * 2048 * 4 / 2}
    assert [r.buffer_bytes / 4 for r in rows if r.tensor == "grad_norm" and r.axis == "fsdp"] == [10, 9, 9, 10]


def test_recompute_repeats_gathers_and_all_but_the_last_scatter() -> None:
    mesh, *sentences = FSDP
    found = calls(rows_of(32, mesh.format(8), *sentences, "recompute blocks"))
    assert found["all_gather", "tp"] == 6 * 32 + 2
    assert found["reduce_scatter", "tp"] == 5 * 32 + 2


def test_replicas_all_reduce_each_group() -> None:
    mesh = "replica 4 > fsdp 8 > tp 8"
    found = calls(rows_of(4, mesh, "use hsdp over replica, fsdp", TP, SP, ranks=32))
    assert found["all_reduce", "replica"] == 4 + 2


def test_bytes_of_fsdp() -> None:
    mesh, *sentences = FSDP
    whole = rows_of(32, mesh.format(8), *sentences)
    mixed = rows_of(32, mesh.format(8), *sentences, "compute bf16 reduce fp32")
    assert mib(whole, "all_gather", "fsdp") == pytest.approx(7409.5, abs=0.05)
    assert mib(mixed, "all_gather", "fsdp") == pytest.approx(3704.8, abs=0.05)
    assert mib(mixed, "reduce_scatter", "fsdp") == pytest.approx(3830.0, abs=0.05)


def test_padding_at_2048_ranks() -> None:
    """Rows after tp are fewer than ranks: 47 % more bytes than at 128, where every row count divides."""
    mesh, *sentences = FSDP
    small, large = (
        mib(rows_of(4, mesh.format(ranks), *sentences, ranks=ranks), "all_gather", "fsdp") for ranks in (128, 2048)
    )
    assert small == pytest.approx(1588, abs=0.5)
    assert large == pytest.approx(2336, abs=0.5)


UPDATES = {
    # layout: bytes gathered for Muon's updates by axis, read from one layer of llama_micro (torch 2.13)
    "two": (("fsdp 2 > tp 2", "use fsdp over fsdp", TP), {"fsdp": 126464, "tp": 157440}),
    "state": (("fsdp 2 > tp 2", "use zero2 over fsdp", TP), {"fsdp": 126464, "tp": 157440}),
    "one": (("fsdp 4", "use fsdp over fsdp"), {"fsdp": 189952}),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_gathered_over_one_axis_after_the_other(name: str) -> None:
    """Where two axes divide one dimension of a matrix, the stored parts first; rows as fully_shard pads them."""
    (mesh, *sentences), seen = UPDATES[name]
    plan = plan_of("muon", mesh, *sentences, model="llama_micro(layers = 1)")
    sharded = propagated(replace(plan, optimizer=Optimizer(name="muon")))
    found: Counter[str] = Counter()
    for row in realise(sharded, semantic_collectives(sharded)):
        found[row.axis] += round(row.payload_bytes) if row.carries == "update" else 0
    assert +found == seen
    assert set(predicted(sharded, 0))


def test_ranks_with_fewer_rows_hand_over_fewer_to_updates() -> None:
    """Bytes over the tensor axis as six processes saw them: eight experts and 32 rows do not divide by three."""
    sentences = ("use vocab over model", "shard heads, expert_ffn over model", "shard batch over fsdp")
    model = "mixtral_micro(head_dim = 16, experts = 8, expert_ffn = 48, layers = 2)"
    plan = plan_of("muon", "fsdp 3 > model 2", *sentences, "store optimizer over fsdp", model=model)
    sharded = propagated(replace(plan, optimizer=Optimizer(name="muon")))
    seen = [predicted(sharded, 0, rank)["all_gather", "model", "fp32"].bytes for rank in (0, 3, 4)]
    assert seen == [374784, 374784, 299008]


def test_a_mesh_of_two_axes_has_its_own_name() -> None:
    """Attention is divided over both, and feed-forward layers over the inner one."""
    sharded = propagated(plan_of("part", "a 2 > tp 2", "shard heads over a, tp", "shard ffn, vocab over tp"))
    roles = AxisRoles(sharded)
    assert [f.name for f in roles.factors if f.role == "tensor"] == ["a", "tp"]
    assert [f.name for f in roles.tensor_meshes] == ["a_tp", "tp"]
    found = {dimension_of(roles, row) for row in realise(sharded, semantic_collectives(sharded))}
    assert {"a_tp", "tp"} <= found and "a" not in found


@pytest.mark.parametrize(
    ("sentence", "gathers"),
    [
        ("recompute attention", 1),  # of the input of q, k and v
        ("recompute ffn", 1),  # of the input of gate and up
        ("recompute attention.norm, ffn.norm, ffn.swiglu", 2),
        ("recompute ffn.norm", 1),  # its output, as the products after it need it
        ("recompute attention.core", 0),
        ("recompute ffn.swiglu", 0),
        (f"recompute blocks except {MATMULS}", 2),
    ],
)
def test_a_replay_gathers_what_it_makes_anew(sentence: str, gathers: int) -> None:
    """Per layer, over the tensor axis: the product that reads it may be kept all the same."""
    mesh, *sentences = FSDP
    rows = [r for r in rows_of(4, mesh.format(8), *sentences, sentence) if r.phase == "recompute"]
    assert sum(r.count for r in rows if r.op == "all_gather" and r.axis == "tp") == 4 * gathers
    assert sum(r.count for r in rows if r.op == "reduce_scatter") == (4 if sentence == "recompute attention" else 0)


@pytest.mark.parametrize(("kept", "sent"), [("matmul", 2), ("attention.core", 2), ("matmul, attention.core", 2)])
def test_a_replay_sends_rows_to_their_experts_again(kept: str, sent: int) -> None:
    """Rows and their weights for each layer; not back, as a replay ends before the sum that reads them."""
    sentences = ("use zero3 over ep", "use ep over ep", f"recompute blocks except {kept}")
    rows = [r for r in rows_of(2, "ep 2", *sentences, ranks=2, model="mixtral_micro") if r.op == "all_to_all"]
    again = [r for r in rows if r.phase == "recompute"]
    assert sum(r.count for r in again if r.dtype != "int64") == 2 * sent
    assert sum(r.count for r in again if r.dtype == "int64") == 2


ROWS, EMBED = 8192, 4096
MAXIMA = {
    "rowwise": {"backward": (10, 5 * ROWS + 5 * EMBED), "forward": (4, 2 * ROWS + 2 * EMBED)},
    "tensorwise": {"backward": (5 * 3 + 2 * 2, 5 * 3 + 2 * 2), "forward": (5 + 2 * 2, 5 + 2 * 2)},
}
"""All-reduces of a layer and microbatch, and the numbers in them. Five linear layers have their outputs divided, which
the input's gradient sums over, and two their inputs; by tensor each product that a divided factor has takes one."""


@pytest.mark.parametrize("recipe", MAXIMA)
def test_scales_of_float8_are_those_of_all_ranks(recipe: str) -> None:
    mesh, *sentences = FSDP
    narrow = f"quantize ffn, attention as float8({recipe}) except layers 0"
    rows = rows_of(4, mesh.format(8), *sentences, narrow, "recompute blocks every 2 layers")
    found: dict[str, tuple[int, float]] = {}
    for row in (r for r in rows if r.dtype == "fp64"):
        count, numbers = found.get(row.phase, (0, 0.0))
        found[row.phase] = count + row.count, numbers + row.payload_bytes / 8
    layers = {"forward": 3, "backward": 3, "recompute": 1}  # of layers 1 to 3 the replay runs layer 2
    expected = {**MAXIMA[recipe], "recompute": MAXIMA[recipe]["forward"]}
    assert found == {phase: (n * layers[phase], of * layers[phase]) for phase, (n, of) in expected.items()}


def test_every_changed_row_names_its_rules() -> None:
    mesh, *sentences = FSDP
    names = [rule.NAME for rule in ORDER]
    for row in rows_of(2, mesh.format(8), *sentences):
        places = [names.index(name) for name in row.realised_by]
        assert places == sorted(places)


@pytest.mark.parametrize("name", [name for name in schedules() if name != "csv"])
def test_gathers_of_repeats_are_those_of_single_actions(name: str) -> None:
    """Parameters of a pipeline's stages, for ranks, chunks and microbatches that the schedule runs."""
    schedule, counted = schedules()[name], 0
    for ranks, microbatches in ((1, 3), (2, 4), (3, 7), (4, 8), (4, 12)):
        shape = ScheduleShape(ranks, 2 if schedule.free_chunks else schedule.chunks, microbatches)
        if schedule.need(shape) is not None or (schedule.even_ranks and ranks % 2):
            continue
        for rank in range(ranks):
            repeats = list(schedule.rank_actions(shape, rank))
            found = gathers(repeats)
            for stage in {action.stage for repeat in repeats for action in repeat.actions}:
                assert found[stage] == gathers_one_by_one(unrolled(repeats), stage)
                counted += 1
    assert counted


def gathers_one_by_one(actions: list[Action], stage: int) -> tuple[int, int]:
    """Forward and backward gathers of a stage: a forward lets its parameters go, a backward keeps them."""
    kinds = ["forward" if a.kind == "forward" else "backward" for a in actions if a.stage == stage]
    needed = [kind for before, kind in pairwise(["forward", *kinds]) if before == "forward"]
    return needed.count("forward"), needed.count("backward")


def test_a_rank_with_fewer_rows_of_a_tied_table_sends_fewer_between_the_ends() -> None:
    """The 69 rows of a tensor rank, over two ranks that store gradients, are 35 and 34."""
    sentences = ("use zero2 over data", "use tp over tp", "split layers over pp as 1f1b")
    sharded = propagated(plan_of("tied_rows", "pp 2 > data 2 > tp 2", *sentences, model="llama_micro_tied"))
    most, *others = (predicted(sharded, 0, rank)["all_reduce", "pp", "fp32"].bytes for rank in range(4))
    assert [most - other for other in others] == [0, 64 * 4, 64 * 4]
