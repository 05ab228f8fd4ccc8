"""A search over a space drawn at random returns what `planc check` of each of its plans says."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from planc.cli import main
from planc.costing import cost_plan
from planc.diag.errors import PlanError
from planc.driver import search
from planc.ir.target import NO_TARGET, TARGETS, AnyTarget
from planc.lowering import load_backend
from planc.searching.branch_and_bound import TARGET_MEMORY, TARGET_SLACK
from planc.searching.exhaustive import every
from planc.searching.lower_bounds import Bounds
from planc.searching.space import Space
from tests.search.spaces import Outcome, draw, first_rows, in_rows

QUICK = 3
SAME_RULE = {"E0402": {"E0402", "E0413"}, "E0401": {"E0401", "E0402"}}
"""Codes that a check may have for what a search counts under one: a schedule that does not run on these numbers."""


def compare(text: str, folder: Path) -> str:
    """Compare the search of a space with every plan in it; "refused" where no choice mends it."""
    path = folder / "space.plan"
    path.write_text(text)
    try:
        found = search(path, top=5)
    except PlanError:
        named: list[AnyTarget] = [t for t in TARGETS if f"target {t}" in path.read_text()]
        plans = Outcome(path, (*named, NO_TARGET)[0], 0.0)
        assert plans.lowered == 0, path.read_text()
        return "refused"
    plans = Outcome(path, found.target or NO_TARGET, found.room_gib)
    best = in_rows(found)
    assert best == first_rows(plans.fitting, 5), path.read_text()
    assert bool(found.meshes.get("found")) == bool(best) and not found.meshes.get("open"), path.read_text()
    assert bool(found.nearest_miss) == (not plans.fitting and plans.lowered > 0), path.read_text()
    for reason in found.refusals:
        same = SAME_RULE.get(reason.code, {reason.code})
        filled = bool(plans.codes) or plans.lowered > 0  # no schedule of `as ?` may have stages for so few layers
        assert plans.codes.keys() & same or not filled, (reason, plans.codes, path.read_text())
    return "found" if best else "nothing fits"


@pytest.mark.parametrize("seed", [*range(QUICK), *(pytest.param(n, marks=pytest.mark.long) for n in range(QUICK, 24))])
def test_a_drawn_space_equals_brute_force(seed: int, tmp_path: Path) -> None:
    compare(draw(seed), tmp_path)


FOUND_WRONG = {
    "torch gathers the head once, and a block's parameters in one call": (
        "llama3_8b(layers = 4)\nbatch 8 x 128 tokens microbatch 1\ncluster 1 x h100_node\n"
        "mesh tp ? > replica ? > fsdp ? > pp ?\ncompute fp32\nuse hsdp over replica, fsdp\nuse tp over tp\n"
        "use sp over tp\nsplit layers over pp as dualpipe\n"
    ),
    "planc's own program of a plan that a framework realises": (
        "llama3_8b(layers = 4, vocab = 1000)\nbatch 16 x 2048 tokens microbatch 1\ncluster 1 x h100_node\n"
        "mesh pp ? > fsdp ? > tp ?\ncompute bf16 reduce bf16\nuse fsdp over fsdp\nuse tp over tp\n"
        "split layers over pp as zbv\nrecompute blocks\nrealise as megatron\ntarget cuda\n"
    ),
}
"""Spaces that were ranked otherwise than by brute force."""


@pytest.mark.parametrize("what", FOUND_WRONG)
def test_what_was_mended_equals_brute_force(what: str, tmp_path: Path) -> None:
    assert compare(f"plan space\nmodel {FOUND_WRONG[what]}", tmp_path) == "found"


@pytest.mark.parametrize("seed", [8, 16, 33, *(pytest.param(n, marks=pytest.mark.long) for n in range(40, 80))])
def test_no_program_is_far_below_its_bound(seed: int, tmp_path: Path) -> None:
    """A layout whose program gains more than a search allows for may be missed."""
    path = tmp_path / "space.plan"
    path.write_text("\n".join(line for line in draw(seed).splitlines() if not line.startswith(("realise", "target"))))
    for target in TARGETS:
        space, backend = Space(path, on=target), load_backend(target)
        bounds = Bounds(space, backend)
        for point, _, _ in every(space, 12):
            with suppress(PlanError):  # refused
                costed = cost_plan(bounds.sharded(point), backend=backend)
                least = bounds.of(point)
                assert least.time_s <= costed.step.time_s * TARGET_SLACK, (target, space.text_of(point))
                assert least.memory_gib * TARGET_MEMORY <= costed.memory.per_device_gib.total, space.text_of(point)


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
        said.append(capsys.readouterr().out)
        answer = search(path, top=5).to_json()
        assert sum(answer["meshes"].values()) == 6
        refused = answer["meshes"].get("rule", 0) + answer["meshes"].get("target", 0)
        assert sum(r["meshes"] for r in answer["refusals"]) == refused > 0
    rules, target = said
    assert "6 meshes: 3 in the answer, 3 against a rule of the language" in rules
    assert re.search(r"E0205 +1 +1  no microbatch divides the batch over 32 data-parallel ranks\n", rules)
    assert re.search(r"E0301 +2 +2  8 key-value heads over tp = 32 ranks: 0.25 heads each\n", rules)
    assert re.search(r"E0901 +\d +\d  the cuda target cannot do `overlap tp as dual_batch`", target)
