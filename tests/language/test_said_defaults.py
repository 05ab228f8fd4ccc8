"""A default that is said changes nothing: `gather params per PERIOD` with the period that holds, on every answer."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

from planc.diag.errors import PlanError
from planc.driver import Examined, examine, load
from planc.interop.exporting import export_plan
from planc.interop.systems import systems
from planc.ir.target import TARGETS
from planc.lowering import lower_sharded
from planc.pipeline.split import action_lists
from tests.plans import BODY, BUNDLED, FIELD, HEAD, written
from tests.random_plans.promises import write
from tests.random_plans.run import drawn_of

FIGURES = ("memory", "step", "limits", "uncertainty", "targets")
PIPELINED = HEAD.replace("fsdp 8 > tp 8", "pp 4 > fsdp 2 > tp 8") + BODY
WHOLE_GRADS = PIPELINED.replace("use       fsdp over fsdp", "shard batch over fsdp\nstore params, optimizer over fsdp")
"""The layout that torchtitan's pipelines have: it exports what gathers params once a step too."""
PROSE = 500
SCHEDULES = ("1f1b", "gpipe", "zbv", "interleaved_zero_bubble(chunks = 2)", "dualpipev")


def programs(examined: Examined) -> list[str]:
    """The program of each target, without comments and the plan's sum; empty where it refuses."""
    found = []
    for target in TARGETS:
        try:
            text = lower_sharded(examined.sharded, target).text if examined.sharded else ""
        except PlanError:
            text = ""
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > PROSE:
                node.value = ""  # the plan in words, and compiled
        found.append(re.sub(r"\b[0-9a-f]{16,64}\b", "", ast.unparse(tree)))
    return found


def exports(path: Path) -> dict[str, object]:
    """The fields that each system's file would have; those that refuse are left out."""
    found: dict[str, object] = {}
    for name, system in systems().items():
        try:
            found[name] = dict(export_plan(load(path), name).fields) if system.text is not None else {}
        except PlanError:
            continue
    return found


def law(path: Path, *, whole: bool) -> bool:
    """Raise AssertionError where saying the default of `gather` changes an answer; False where nothing is gathered."""
    before, text = examine(path), path.read_text()
    plan = before.plan
    if plan is None or before.costed is None or plan.gather is not None or not plan.store("params"):
        return False
    said = path.with_name("said.plan")
    said.write_text(f"{text.rstrip()}\ngather    params per {plan.gather_per}\n")
    after = examine(said)
    for part in FIGURES:
        assert getattr(before.report, part) == getattr(after.report, part), part
    rows = [[(r.row.op, r.row.axes, r.row.count, r.time_s) for r in e.report.collectives] for e in (before, after)]
    assert rows[0] == rows[1]
    if whole:
        assert programs(before) == programs(after)
        assert exports(path) == exports(said)
    return True


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda p: p.stem)
def test_of_a_bundled_plan(path: Path, tmp_path: Path) -> None:
    law(Path(shutil.copy(path, tmp_path / path.name)), whole=path in BUNDLED)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_of_every_kind_of_schedule(schedule: str, tmp_path: Path) -> None:
    for text in (PIPELINED, WHOLE_GRADS):
        assert law(written(tmp_path, f"{text}split layers over pp as {schedule}\n"), whole=True)


def test_of_drawn_plans(tmp_path: Path) -> None:
    assert sum(law(write(drawn_of(seed), tmp_path / str(seed)), whole=True) for seed in range(30)) >= 6


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if "(" not in s])
def test_a_schedule_in_a_file_has_the_default_of_the_same_bundled_one(schedule: str, tmp_path: Path) -> None:
    bundled = written(tmp_path, f"{PIPELINED}split layers over pp as {schedule}\n")
    plan = load(bundled)
    rows = action_lists(plan.split, plan.pipeline, plan.microbatches)
    cells = [[a.text + ";" * a.overlaps_next for a in row] for row in rows]
    text = "\n".join(re.sub(r"(\w+);,(\w+)", r"(\1;\2)OVERLAP_F_B", ",".join(row)) for row in cells)
    (tmp_path / "own.csv").write_text(text + "\n")
    own = written(tmp_path, f'{PIPELINED}split layers over pp as csv("own.csv")\n', "own")
    of = [examine(path, target="none").costed for path in (bundled, own)]
    assert of[0] and of[1] and load(own).gather_per == plan.gather_per
    assert of[1].memory.per_device_gib.total == pytest.approx(of[0].memory.per_device_gib.total, rel=1e-12)
    assert of[1].step.time_s == pytest.approx(of[0].step.time_s, rel=1e-12)


@pytest.mark.parametrize("said", ["pass", "microbatch", "step"])
def test_a_sentence_about_what_is_not_gathered_changes_nothing(said: str, tmp_path: Path) -> None:
    """Parameters are whole, so that W0503 calls the sentence idle."""
    text = HEAD.replace("fsdp 8 > tp 8", "dp 64") + "use zero2 over dp\n"
    plain, idle = written(tmp_path, text), written(tmp_path, f"{text}gather params per {said}\n", "idle")
    before, after = examine(plain), examine(idle)
    assert [d.code for d in after.report.diagnostics if d.code not in {e.code for e in before.report.diagnostics}] == [
        "W0503"
    ]
    for part in FIGURES:
        assert getattr(before.report, part) == getattr(after.report, part), part
    assert programs(before) == programs(after) and all(programs(before))
