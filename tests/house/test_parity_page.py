"""The parity page lists layouts that the tests train, as they train them, and none outside the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda.cases import LAYOUTS
from tests.cuda.family_cases import FAMILY
from tests.cuda.moe_cases import MOE
from tests.xla.cases import LAYOUTS as XLA
from tests.xla.cases import NARROW
from tests.xla.moe_cases import MOE as XLA_MOE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "parity.md"
BUDGET, LEAST = 1e-5, {"cuda": 30, "xla": 25}
CASES = {
    "cuda": {**LAYOUTS, **MOE, **{name: (case.mesh, *case.sentences) for name, case in FAMILY.items()}},
    "xla": {**XLA, **NARROW, **XLA_MOE},
}


def rows(stack: str) -> list[list[str]]:
    table = PAGE.read_text().partition(f"## {stack}")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "][
        2:
    ]


@pytest.mark.parametrize("stack", CASES)
def test_every_layout_is_one_of_the_tests(stack: str) -> None:
    found = rows(stack)
    assert len(found) >= LEAST[stack]
    for name, _, plan, *_ in found:
        mesh, *sentences = CASES[stack][name]
        assert plan == "; ".join(f"`{s}`" for s in (f"mesh {mesh}", *sentences)), name


@pytest.mark.parametrize("stack", CASES)
def test_every_figure_is_in_its_budget(stack: str) -> None:
    for name, _, plan, *figures in rows(stack):
        wide = "bf16" not in plan or "float8" in plan or name in ("fsdp_bf16", "one_bf16")
        if wide:
            assert max(map(float, figures[:4])) <= BUDGET, name
        assert figures[4:] in ([], ["as predicted"], ["not counted: blocks are compiled"]), name
