"""Replays of blocks that keep some outputs by module: what is kept, and what the forward saves."""

from __future__ import annotations

import pytest

from planc.backends.cuda.analysis.replays import is_selective, replay, saved_in
from tests.plans import propagated

from .cases import FSDP, MATMULS, SP, TP, plan_of

ATTENTION = {f"attention.w{letter}": ("matmul",) for letter in "qkv"} | {"attention.core": ("attention",)}
GATED = {"feed_forward.w1": ("matmul",), "feed_forward.w3": ("matmul",)}
SUMMED = {"attention.wo": ("reduce_scatter",)}
KEPT = {
    "recompute attention": {**GATED, "feed_forward": ("all_gather",)},
    "recompute ffn": {**ATTENTION, **SUMMED, "attention": ("all_gather",)},
    "recompute attention.norm, ffn.norm, ffn.swiglu": {**ATTENTION, **SUMMED, **GATED},
    f"recompute blocks except {MATMULS}": {
        **{p: k for p, k in ATTENTION.items() if k == ("matmul",)},
        **SUMMED,
        **GATED,
    },
}
"""By sentence, under tensor parallelism with divided sequences: a product before a sum is kept as it is reduced, the
last one never, and what was gathered of an output that stays."""


@pytest.mark.parametrize("sentence", KEPT)
def test_what_a_replay_keeps(sentence: str) -> None:
    sharded = propagated(plan_of("kept", "fsdp 2 > tp 2", FSDP, TP, SP, sentence))
    assert is_selective(sharded)
    assert saved_in(sharded, "block") == KEPT[sentence]


@pytest.mark.parametrize(
    "sentence", ["recompute blocks", "recompute attention.core", "recompute blocks except attention.core"]
)
def test_whole_blocks_modules_and_kinds_are_wrapped_as_such(sentence: str) -> None:
    assert not is_selective(propagated(plan_of("kept", "fsdp 2 > tp 2", FSDP, TP, SP, sentence)))


def test_what_a_replay_saves() -> None:
    """A replay that runs a block from its beginning makes norms and sums anew, and no product that is kept."""
    sharded = propagated(plan_of("kept", "fsdp 4", FSDP, "recompute attention"))
    again = replay(sharded, "block")
    made = {o.op.output: o.op.name for o in sharded.ops["block"][:-1]}
    assert {made[t] for t in again.saved if t in made} == {"ffn.gate", "ffn.up"}
    assert "ffn.norm" in again.ops and "ffn.gate" not in again.ops
