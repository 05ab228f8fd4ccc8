"""Replays of blocks that keep some outputs by module: what is kept, and what the forward saves."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from planc.backends.cuda.analysis.replays import is_selective, replay, saved_in
from planc.backends.cuda.rules import realise
from planc.checks import check_plan
from planc.diag.errors import PlanError
from planc.ir.sharding import Sharded
from planc.language.build import build_file
from planc.lowering import lower_plan
from planc.sharding.collectives import semantic_collectives
from tests.plans import propagated, written
from tests.random_plans.draw import draw, trainable

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


def test_a_replay_that_keeps_kinds_of_op_moves_what_blocks_move(tmp_path: Path) -> None:
    """torch's policy keeps outputs of matmuls and attention, and no collective: what is sent before them is sent again,
    to experts and for attention too. Drawn layouts, with each kind of op kept and with both."""
    found = Counter[str]()
    for seed in range(20):
        text = re.sub(r"(?m)^ *(on cuda: )?recompute .*\n", "", trainable(draw(seed, small=True).text))
        whole = _lowered(tmp_path, f"{text}recompute blocks\n")
        if whole is None:
            continue
        ops = [op for kind in whole.model.blocks for op in whole.model.ops[kind]]
        for kinds in (("matmul",), ("attention",), ("matmul", "attention")):
            kept = ", ".join(dict.fromkeys(op.name for op in ops if op.kind in kinds))
            sharded = _lowered(tmp_path, f"{text}recompute blocks except {kept}\n")
            if sharded is not None and not is_selective(sharded):
                assert _moved_again(sharded) == _moved_again(whole), (seed, kept)
                found.update([*kinds, *(key[0] for key in _moved_again(sharded))])
    assert min(found[word] for word in ("matmul", "attention", "all_to_all", "all_gather")) >= 4, found


def _lowered(folder: Path, text: str) -> Sharded | None:
    """The layouts of a text's plan; None where cuda has no program for it."""
    plan = build_file(written(folder, text), target="cuda").plan
    try:
        return lower_plan(check_plan(plan), "cuda").sharded if plan is not None else None
    except PlanError:
        return None


def _moved_again(sharded: Sharded) -> Counter[tuple[str, ...]]:
    """Calls of replays but for those of rings, whose outputs are kept with what they were sent."""
    calls = Counter[tuple[str, ...]]()
    for row in realise(sharded, semantic_collectives(sharded)):
        if row.phase == "recompute" and row.carries == "activation" and row.op != "send_recv":
            calls[row.op, row.axis, row.tensor, row.dtype, row.section, str(row.stage)] += row.count
    return calls
