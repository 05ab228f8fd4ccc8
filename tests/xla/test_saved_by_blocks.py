"""Blocks that are run again beside others that keep all: which layers, and how many keep a tensor."""

from __future__ import annotations

import pytest

from planc.backends.xla.analysis.saved_by_blocks import layers_that_save
from planc.backends.xla.emit.remat import groups_of, stacks
from planc.ir.sharding import Sharded
from tests.plans import propagated
from tests.xla.cases import FSDP, plan_of


def every(layers: int, period: int, model: str = "llama_micro") -> Sharded:
    sentence = f"recompute blocks every {period} layers"
    return propagated(plan_of("kept", "fsdp 2", FSDP, sentence, model=f"{model}(layers = {layers})"))


@pytest.mark.parametrize("period", [2, 3, 5, 9])
@pytest.mark.parametrize(("layers", "model"), [(4, "llama_micro"), (7, "llama_micro"), (7, "deepseek_micro")])
def test_layers_whose_number_is_a_multiple_are_run_again(layers: int, period: int, model: str) -> None:
    """By groups every layer comes once and in order; a group's first one is run again, unless it is said to keep
    all."""
    sharded = every(layers, period, model)
    again, seen = [], 0
    for first, count in stacks(sharded).values():
        for begin, groups, size, names in groups_of(sharded, first, count):
            assert first + begin == seen
            again += [first + begin + g * size for g in range(groups) if not names]
            seen += groups * size
    assert seen == layers
    assert again == [n for n in range(layers) if n % period == 0]


def test_what_is_kept_is_kept_by_the_other_layers_alone() -> None:
    sharded = every(5, 2)
    assert layers_that_save(sharded, "block", "ffn.gate") == 2 / 5
    assert layers_that_save(sharded, "block", sharded.model.block_output) == 1
