"""Copies of a token on its way to experts: for each choice, each device or each node."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc import check
from planc.ir.plan import Plan
from planc.ir.target import Target
from planc.sharding.activation_collectives import activation_calls
from planc.sharding.dispatch import copies_share
from tests.plans import codes, plan_of, sharded_of, written

PLAN = """plan experts
model     deepseek_v3(layers = 4)
batch     256 x 4096 tokens microbatch 1
cluster   NODES x h100_node
mesh      fsdp RANKS
use       fsdp over fsdp
use       ep over fsdp
compute   bf16 reduce fp32
"""


def text(nodes: int, route: str) -> str:
    return PLAN.replace("NODES", str(nodes)).replace("RANKS", str(8 * nodes)) + f"route experts as {route}\n"


def plan(folder: Path, nodes: int, route: str) -> Plan:
    return plan_of(folder, text(nodes, route))


@pytest.mark.parametrize(
    ("nodes", "route", "places"),
    [
        (1, "dropless(copies = device)", 8),
        (1, "dropless(copies = node)", 8),
        (4, "dropless(copies = device)", 32),
        (4, "dropless(copies = node)", 4),
        (8, "dropless(copies = node, node_limit = 4)", 4),
        (2, "dropless(copies = node, node_limit = 4)", 2),
    ],
)
def test_a_place_that_holds_several_chosen_experts_gets_one_copy(
    nodes: int, route: str, places: int, tmp_path: Path
) -> None:
    """Eight even choices hit n (1 - (1 - 1/n)^8) of n places."""
    share = copies_share(plan(tmp_path, nodes, route), ("fsdp",))
    assert share == pytest.approx(places * (1 - (1 - 1 / places) ** 8) / 8)


@pytest.mark.parametrize("route", ["dropless", "dropless(node_limit = 2)", "dropless(copies = choice)"])
def test_otherwise_each_choice_is_sent(route: str, tmp_path: Path) -> None:
    assert copies_share(plan(tmp_path, 4, route), ("fsdp",)) == 1.0


def test_the_exchanges_of_tokens_shrink_and_nothing_else(tmp_path: Path) -> None:
    each, once = (sharded_of(tmp_path, text(4, f"dropless(copies = {c})")) for c in ("choice", "node"))
    share = copies_share(once.plan, ("fsdp",))
    for phase in ("forward", "backward"):
        pairs = zip(activation_calls(each, "block", phase), activation_calls(once, "block", phase), strict=True)
        ratios = {(a.op, b.elements / a.elements) for a, b in pairs}
        assert ratios == {("all_to_all", share)}


def test_nodes_are_counted_along_the_experts_axes_alone(tmp_path: Path) -> None:
    """Eight ranks with a stride of four lie on four nodes of eight devices."""
    inner = (
        PLAN.replace("NODES", "4")
        .replace("fsdp RANKS", "fsdp 8 > tp 4")
        .replace("use       ep", "use tp over tp\nuse ep")
    )
    built = plan_of(tmp_path, inner + "route experts as dropless(copies = node)\n")
    assert copies_share(built, ("fsdp",)) == pytest.approx(4 * (1 - (3 / 4) ** 8) / 8)


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_programs_send_a_copy_for_each_choice(target: Target, tmp_path: Path) -> None:
    report = check(written(tmp_path, text(1, "dropless(copies = node)")), target=target)
    refused = [d for d in report.diagnostics if d.code == "E0901"]
    assert [d.span.line for d in refused] == [9] and "copy of a token" in refused[0].message


def test_another_word_is_refused(tmp_path: Path) -> None:
    assert codes(tmp_path, text(1, "dropless(copies = rack)")) == ["E0108"]
