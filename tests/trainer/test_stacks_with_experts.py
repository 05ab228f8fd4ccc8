"""The tiny plan with experts on both stacks: the same losses, the same tokens to the same experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.trainer.receipt.crosscheck import crosscheck
from planc.trainer.receipt.receipt import Receipt
from planc.trainer.run.train import train

PRESET = Path(__file__).resolve().parents[2] / "plans/presets/tiny_moe.toml"

pytestmark = [pytest.mark.launch, pytest.mark.slow]


@pytest.fixture(scope="module")
def receipts() -> list[Receipt]:
    return [train(PRESET, "cuda"), train(PRESET, "xla")]


def test_a_hundred_steps_agree(receipts: list[Receipt]) -> None:
    found = crosscheck(receipts)
    assert found.ok, found.to_json()
    assert len(receipts[0].losses) == 100


def test_both_count_every_pick(receipts: list[Receipt]) -> None:
    """1,024 tokens, two experts each, in three layers."""
    for receipt in receipts:
        assert receipt.measured.routing is not None
        assert {sum(map(sum, picks)) for picks in receipt.measured.routing.values()} == {1024 * 2 * 3}


def test_the_balance_evens_the_routers_out(receipts: list[Receipt]) -> None:
    routing = receipts[0].measured.routing
    assert routing is not None
    busiest = [max(max(layer) for layer in routing[step]) for step in (1, 100)]
    assert busiest[1] < 0.9 * busiest[0]
