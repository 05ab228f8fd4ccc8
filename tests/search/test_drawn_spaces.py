"""A search over a space drawn at random returns what `planc check` of each of its plans says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planc.cli import main
from planc.diag.errors import PlanError
from planc.driver import search
from planc.ir.target import NO_TARGET, TARGETS, AnyTarget
from tests.search.spaces import Outcome, draw, rounded

QUICK = 3
SAME_RULE = {"E0402": {"E0402", "E0413"}, "E0401": {"E0401", "E0402"}}
"""Codes that a check may have for what a search counts under one: a schedule that does not run on these numbers."""


def compare(seed: int, folder: Path) -> str:
    """Compare the search of the space of a seed with every plan in it; "refused" where no choice mends it."""
    path = folder / "space.plan"
    path.write_text(draw(seed))
    try:
        found = search(path, top=5)
    except PlanError:
        named: list[AnyTarget] = [t for t in TARGETS if f"target {t}" in path.read_text()]
        every = Outcome(path, (*named, NO_TARGET)[0], 0.0)
        assert every.lowered == 0, path.read_text()
        return "refused"
    every = Outcome(path, found.target or NO_TARGET, found.room_gib)
    best = [(rounded(c.s_per_sequence), rounded(c.memory_gib), c.text) for c in found.best]
    assert best == every.fitting[:5], path.read_text()
    assert bool(found.nearest_miss) == (not every.fitting and every.lowered > 0), path.read_text()
    for reason in found.refusals:
        assert every.codes.keys() & SAME_RULE.get(reason.code, {reason.code}), (reason, every.codes, path.read_text())
    return "found" if best else "nothing fits"


@pytest.mark.parametrize("seed", [*range(QUICK), *(pytest.param(n, marks=pytest.mark.long) for n in range(QUICK, 24))])
def test_a_drawn_space_equals_brute_force(seed: int, tmp_path: Path) -> None:
    compare(seed, tmp_path)


SPACE = """plan space
model llama3_8b(layers = 4)
batch {batch} x 128 tokens microbatch 1
cluster 4 x h100_node
mesh fsdp ? > tp ?
compute bf16 reduce fp32
use fsdp over fsdp
use tp over tp
"""


def test_refusals_are_counted_by_their_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of rules and of the target; reasons that differ in their numbers alone are one."""
    path = tmp_path / "space.plan"
    said = []
    for text in (SPACE.format(batch=16), SPACE.format(batch=32) + "overlap tp as dual_batch\n"):
        path.write_text(text)
        assert main(["search", str(path)]) == 0
        said += [line for line in capsys.readouterr().out.splitlines() if line.startswith("refused: ")]
    rules, target = said
    assert "1 E0205 (no microbatch divides the batch over 32 data-parallel ranks)" in rules
    assert "2 E0301 (8 key-value heads over tp = 32 ranks: 0.25 heads each)" in rules
    assert re.search(r"\d E0901 \(the cuda target cannot do `overlap tp as dual_batch`", target)
