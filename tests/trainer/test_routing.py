"""Picks of experts in receipts: which runs count them, how flips are found, and what they allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planc.diag import PlanError
from planc.trainer.preset.load import load_preset
from planc.trainer.receipt.crosscheck import crosscheck
from planc.trainer.receipt.crosscheck_text import render
from planc.trainer.receipt.receipt import Receipt
from planc.trainer.receipt.routing import MOST_NUMBERS, Picks, counted, flips, routed_layers
from tests.trainer.test_crosscheck import receipt
from tests.xla.moe_cases import moe_plan

ROOT = Path(__file__).resolve().parents[2]
EVEN = [[4, 4, 4, 4], [4, 4, 4, 4]]
FLIPPED = [[4, 4, 4, 4], [5, 4, 3, 4]]


def run(losses: tuple[float, ...], *picks: list[list[int]]) -> Receipt:
    plain = receipt(losses)
    routing = dict(enumerate(picks, start=1)) or None
    return plain.model_copy(update={"measured": plain.measured.model_copy(update={"routing": routing})})


def test_a_flip_takes_a_pick_from_one_expert_and_gives_it_to_another() -> None:
    one, other = run((5.0, 4.0, 3.0), EVEN, EVEN, EVEN), run((5.0, 4.0, 3.0), EVEN, FLIPPED, EVEN)
    assert flips([one, other]) == [0, 1, 0]
    assert flips([one, one]) == [0, 0, 0]


def test_runs_that_count_nothing_have_no_flips() -> None:
    assert flips([run((5.0,)), run((5.0,), EVEN)]) is None
    assert crosscheck([run((5.0,)), run((5.0,))]).routing_flips is None


@pytest.mark.parametrize("picks", [[[4, 4, 4]], [[4, 4, 4, 4]], [], [[4, 4, 4, 4], [4, 4, 4, 4], [4]]])
def test_runs_of_other_experts_have_no_flips(picks: list[list[int]]) -> None:
    assert flips([run((5.0,), EVEN), run((5.0,), picks)]) is None
    assert crosscheck([run((5.0, 4.0), EVEN, picks), run((5.0, 4.0), picks, EVEN)]).routing_flips is None


def test_a_difference_before_the_first_flip_is_a_fault() -> None:
    one, other = run((5.0, 4.0, 3.0), EVEN, EVEN, EVEN), run((5.0, 4.0005, 3.0), EVEN, EVEN, FLIPPED)
    found = crosscheck([one, other])
    assert (found.ok, found.first_outside_step) == (False, 2)


def test_a_little_more_is_allowed_from_the_first_flip_on() -> None:
    one, other = run((5.0, 4.0, 3.0), EVEN, EVEN, EVEN), run((5.0, 4.0005, 3.0009), EVEN, FLIPPED, FLIPPED)
    found = crosscheck([one, other])
    assert (found.ok, found.routing_flips, found.first_flip_step) == (True, 2, 2)
    assert "2 tokens went to other experts, the first at step 2" in " ".join(render(found, [one, other]).split())


def test_no_flip_excuses_a_large_difference() -> None:
    one, other = run((5.0, 4.0), EVEN, EVEN), run((5.0, 4.002), FLIPPED, EVEN)
    assert crosscheck([one, other]).first_outside_step == 2


def test_a_long_run_keeps_no_counts() -> None:
    plan = moe_plan("ep")
    longest = MOST_NUMBERS // (plan.model.layers * plan.model.sizes["experts"])
    assert counted(plan, longest) and not counted(plan, longest + 1)


class Routed:
    """As much of a session as counts picks."""

    def __init__(self) -> None:
        self.asked = 0

    def routing(self) -> list[list[int]]:
        self.asked += 1
        return [[self.asked]] * LAYERS


LAYERS = routed_layers(moe_plan("ep").model)


@pytest.mark.parametrize(("steps", "found"), [(3, {1: [[1]] * LAYERS, 2: [[2]] * LAYERS}), (MOST_NUMBERS, {})])
def test_picks_are_taken_after_each_step(steps: int, found: dict[int, Any]) -> None:
    session: Any = Routed()
    picks = Picks(session, moe_plan("ep"), steps)
    picks.take(1)
    picks.take(2)
    assert picks.found == found
    assert session.asked == len(found)


def test_picks_of_other_layers_are_a_fault_of_ours() -> None:
    """Such as those by which a pipeline's stages are filled up."""
    session: Any = Routed()
    with pytest.raises(AssertionError, match="the model routes in"):
        Picks(session, moe_plan("deepseek_ep"), 3).take(1)


def test_a_balance_without_experts_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "plans/presets/tiny.toml").read_text()
    path = tmp_path / "dense.toml"
    path.write_text(
        text.replace('source = "../tiny.plan"', 'source = "tiny.plan"').replace("seed = 0", "balance_loss = 0.1")
    )
    with pytest.raises(PlanError) as raised:
        load_preset(path)
    found = next(d for d in raised.value.diagnostics if "balance_loss" in d.message)
    assert found.code == "E1003" and "llama_tiny has no experts" in found.message
    assert "balance_loss" in path.read_text().splitlines()[found.span.line - 1]


def test_the_tiny_plan_with_experts_counts_and_balances() -> None:
    preset = load_preset(ROOT / "plans/presets/tiny_moe.toml")
    assert preset.train.balance_loss > 0 and counted(preset.plan, preset.train.steps)
