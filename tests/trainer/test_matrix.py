"""Saved under one plan, loaded under another: the losses go on as if nothing had happened.

Eight layouts on cuda and three on xla, each saved and loaded under itself and others, and both ways between
the stacks, in one launch a stack. A session takes up one checkpoint after the other, so it also forgets the last one.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from planc.ir.target import Target
from planc.trainer.checkpoint.directory import read_manifest, stored_checkpoints
from planc.trainer.run.launch import run
from tests.compare.pieces import pieces_of
from tests.rows import rows_of
from tests.trainer.matrix import LAYOUTS, layout, pairs

WORKER = Path(__file__).with_name("matrix.py")
PROCESSES = {"cuda": 4, "xla": 1}
BUDGET = 1e-6

pytestmark = [pytest.mark.launch, pytest.mark.long]

Rows = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the checkpoints are."""
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def rows(root: Path) -> Rows:
    """Every pair's losses, from both stacks at once."""

    def launched(stack: str) -> Rows:
        done = run([sys.executable, str(WORKER), stack, str(root)], PROCESSES[stack], timeout_s=600)
        assert done.ok, done.outputs[done.failed_rank or 0][-4000:]
        found = rows_of(done.outputs[0])
        return {(row["from"], row["to"]): row for row in found}

    with ThreadPoolExecutor() as pool:
        both = list(pool.map(launched, LAYOUTS))
    expected = {path.stem: json.loads(path.read_text()) for path in root.glob("*.losses")}
    return {pair: {**row, "expected": expected[pair[0]]} for found in both for pair, row in found.items()}


@pytest.mark.parametrize("pair", [p for stack in LAYOUTS for p in pairs(stack)], ids="->".join)
def test_the_losses_go_on(rows: Rows, pair: tuple[str, str]) -> None:
    row = rows[pair]
    gaps = [abs(a - b) / b for a, b in zip(row["losses"], row["expected"], strict=True)]
    assert max(gaps) <= BUDGET, row


@pytest.mark.parametrize("name", [name for layouts in LAYOUTS.values() for name in layouts])
def test_the_same_plan_goes_on_to_the_bit(rows: Rows, name: str) -> None:
    row = rows[(name, name)]
    assert row["losses"] == row["own"]


def test_the_steps_are_told_apart(rows: Rows) -> None:
    """The budget means something: one step's loss is far from the next one's."""
    first, second = rows[("fsdp", "fsdp")]["own"]
    assert abs(first - second) / second > 1000 * BUDGET


@pytest.mark.parametrize(("stack", "name"), [(stack, name) for stack in LAYOUTS for name in LAYOUTS[stack]])
def test_a_diff_knows_the_pieces(rows: Rows, root: Path, stack: Target, name: str) -> None:
    """The boxes that `planc diff` counts a checkpoint in are those that each layout saved."""
    saved = read_manifest(stored_checkpoints(root / name)[-1].path).tensors
    boxes = {tensor: {(b.offset, b.size) for b in stored.boxes} for tensor, stored in saved.items()}
    assert boxes == pieces_of(layout(stack, name), stack)


def test_there_are_enough_pairs() -> None:
    """Plans that differ, and both ways across."""
    stack_of = {name: stack for stack, layouts in LAYOUTS.items() for name in layouts}
    differing = [(a, b) for stack in LAYOUTS for a, b in pairs(stack) if a != b]
    across = {(stack_of[a], stack_of[b]) for a, b in differing} - {("cuda", "cuda"), ("xla", "xla")}
    assert len(differing) >= 12
    assert len(across) == 2
