"""A rank is its coordinate: the rows that it takes, and its number in every group in which data is placed."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, permutations
from types import SimpleNamespace
from typing import Any

import pytest

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.places import misplaced, sampled_ranks
from planc.backends.cuda.emit.ranks import place
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.lowering import lower_plan
from tests.plans import propagated

from .cases import plan_of

AXES = ("cp 2", "d 2", "e 3", "tp 2", "one 1")
SENTENCES = ("shard batch over d, e", "use cp over cp", "use tp over tp", "store params, grads, optimizer over {}")
BATCH = "24 x 24 tokens microbatch 2"


def ordered(order: tuple[str, ...], stored: str) -> Plan:
    sentences = (s.format(stored) for s in SENTENCES)
    return plan_of("ordered", " > ".join(order), *sentences, batch=BATCH)


def test_every_rank_takes_the_rows_of_its_coordinate() -> None:
    """Each rank's sequences and tokens, in many orders of the axes."""
    for order, stored in zip(list(permutations(AXES))[::9], cycle(("d, cp", "cp, d", "e", "cp, e, d")), strict=False):
        plan = ordered(order, stored)
        emitted: Any = lower_plan(check_plan(plan), "cuda").load()
        pieces = [range(i * 6, i * 6 + 6) for i in range(4)]
        for rank in range(plan.mesh.devices):
            where = SimpleNamespace(device_type="cpu", get_rank=lambda rank=rank: rank)
            part = plan.mesh.axis("cp").place_of(rank)
            assert emitted.data_rank(where) == (plan.mesh.place_of(rank, plan.data_axes), 6)
            assert emitted.sequence_rows(where).tolist() == [*pieces[part], *pieces[3 - part]]


@pytest.mark.parametrize("order", list(permutations(("cp 2", "d 2", "tp 2"))))
def test_ranks_of_a_group_rise(order: tuple[str, ...]) -> None:
    """torch numbers them so. Experts on views of all axes, and on some."""
    view = f"view x 4 > y 2 of {', '.join(a.split()[0] for a in order)} for experts"
    ways = [("use ep over d",), (view, "use ep over x", "store params, grads, optimizer over y for experts")]
    for way in ways:
        sentences = (*(s.format("d, cp") for s in SENTENCES), "shard sequence over tp in residual", *way)
        plan = plan_of(
            "experts", " > ".join(order), *(s.replace("d, e", "d") for s in sentences), model="mixtral_micro"
        )
        roles = AxisRoles(propagated(plan))
        for factor in (*roles.factors, *roles.joined, *roles.experts.factors):
            groups: dict[int, list[int]] = {}
            others = [
                a for a in plan.mesh.every if plan.exists(a, "experts" if factor in roles.experts.factors else "")
            ]
            for rank in range(plan.mesh.devices):
                apart = plan.mesh.place_of(rank, [a for a in others if a not in factor.axes])
                groups.setdefault(apart, []).append(plan.mesh.place_of(rank, factor.axes))
            assert all(places == sorted(places) for places in groups.values())


JOINED = ("cp 2 > d 2", *(s.format("d, cp") for s in (SENTENCES[0].replace(", e", ""), SENTENCES[1], SENTENCES[3])))


def test_the_audit_asks_every_rank() -> None:
    """Where there are not too many; what each gets is what its place says."""
    program = lower_plan(check_plan(plan_of("joined", *JOINED)), "cuda", version="installed")
    assert misplaced(program, sampled_ranks(4)) == []
    assert sampled_ranks(3) == [0, 1, 2] and sampled_ranks(1) == [0]
    assert (len(sampled_ranks(1000)), sampled_ranks(1000)[0], sampled_ranks(1000)[-1]) == (64, 0, 999)


@pytest.mark.parametrize(
    ("text", "planted", "what", "ranks"),
    [
        ("return rank % 2, 2", "return rank // 2, 2", "sequences", [1, 2]),
        ("place, ranks = rank // 2, 2", "place, ranks = rank % 2, 2", "tokens of sequences", [1, 2]),
        (".view(2, 2).permute(1, 0).reshape(-1, 2)", ".reshape(-1, 2)", "shard over cp", [0, 1, 2, 3]),
        (
            "init_device_mesh(device_type, tuple(MESH.values()), ",
            "DeviceMesh(device_type, torch.tensor([0, 2, 1, 3]), ",
            "shard over cp_d",
            [1, 2],
        ),
    ],
)
def test_the_audit_finds_ranks_elsewhere(text: str, planted: str, what: str, ranks: list[int]) -> None:
    program = lower_plan(check_plan(plan_of("joined", *JOINED)), "cuda", version="installed")
    assert program.text.count(text) == 1
    wrong = replace(program, text=program.text.replace(text, planted))
    assert [rank for found, rank in misplaced(wrong, range(4)) if found == what] == ranks


def test_the_text_of_a_place_is_its_number() -> None:
    plan = ordered(AXES, "d")
    for axes in permutations(("cp", "d", "e", "tp"), 2):
        places = [eval(place(plan.mesh, axes), {"rank": rank}) for rank in range(plan.mesh.devices)]
        assert places == [plan.mesh.place_of(rank, axes) for rank in range(plan.mesh.devices)]
