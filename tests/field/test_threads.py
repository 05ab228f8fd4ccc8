"""Mistakes that hurt others are stopped before launch: each thread's has its finding, where it was made."""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from planc.checks import rules
from planc.diag.edits import apply_edits
from planc.driver import check
from planc.ir.report import Report
from planc.trainer.receipt.crosscheck import crosscheck
from planc.trainer.receipt.receipt import Receipt
from tests.field.threads import FOLDER, Thread, marked, plan_path, themes, threads
from tests.trainer.test_crosscheck import receipt

sys.path.insert(0, str(FOLDER.parents[1] / "docs"))
import generate

ALL = threads()
PLANS = sorted((FOLDER / "plans").glob("*.plan"))
WITH_CODE = [p for p in PLANS if marked(p.read_text())]
LOWERED = ("E0901",)
"""Codes of a target: the plan is checked for it."""


@cache
def examined(path: Path, code: str) -> Report:
    return check(path, target="cuda" if code in LOWERED else None)


def test_every_thread_has_one_answer() -> None:
    names = [t.name for t in ALL]
    assert len(names) == len(set(names)) and {t.theme for t in ALL} == set(themes())
    for t in ALL:
        assert sum(map(bool, (t.code, t.row, t.receipts, t.reason))) == 1, t
        assert bool(t.plan) == bool(t.code or t.row), t


def test_at_least_80_threads_are_stopped() -> None:
    assert len([t for t in ALL if not t.reason]) >= 80
    assert len([t for t in ALL if t.code]) >= 70


def test_every_plan_repeats_some_thread() -> None:
    assert {p.stem for p in PLANS} == {t.plan for t in ALL if t.plan}


@pytest.mark.parametrize("thread", [t for t in ALL if t.code], ids=lambda t: t.name)
def test_the_plan_of_a_thread_expects_its_code(thread: Thread) -> None:
    assert [code for code, _ in marked(plan_path(thread.plan).read_text())] == [thread.code]
    assert thread.code in rules()


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda p: p.stem)
def test_a_mistake_is_found_where_it_was_made(path: Path) -> None:
    text = path.read_text()
    ((code, line),) = marked(text)
    found = [d for d in examined(path, code).diagnostics if d.code == code]
    here = [d for d in found if d.span.line == line and d.span.file == str(path)]
    named = [d for d in found if Path(d.span.file).name in text.splitlines()[line - 1]]
    assert here or named, found


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda p: p.stem)
def test_the_offered_edit_mends_it(path: Path, tmp_path: Path) -> None:
    ((code, _),) = marked(path.read_text())
    fixes = [d.fix for d in examined(path, code).diagnostics if d.code == code and d.fix is not None]
    if not fixes:
        assert all(d.help for d in examined(path, code).diagnostics if d.code == code), "neither an edit nor help"
        return
    for file in path.parent.glob("*.csv"):
        shutil.copy(file, tmp_path)
    mended = tmp_path / path.name
    mended.write_text(apply_edits(path.read_text(), fixes[0].edits))
    report = examined(mended, code)
    assert code not in [d.code for d in report.diagnostics], mended.read_text()


@pytest.mark.parametrize("thread", [t for t in ALL if t.row], ids=lambda t: t.name)
def test_a_collective_that_was_missing_is_derived(thread: Thread) -> None:
    assert thread.row is not None
    report = check(plan_path(thread.plan), target="none")
    assert report.ok and report.collectives is not None
    assert thread.row in {(c.row.tensor, c.row.axis) for c in report.collectives}


CHANGED = {
    "mesh": {"fsdp": 4},
    "plan_sha256": "q",
    "init_sha256": "j",
    "seed": 1,
    "dtype": "bf16",
}


@pytest.mark.parametrize("thread", [t for t in ALL if t.receipts], ids=lambda t: t.name)
def test_runs_that_differ_are_not_compared(thread: Thread) -> None:
    other: Receipt = receipt(**cast(Any, {field: CHANGED[field] for field in thread.receipts}))
    answer = crosscheck([receipt(), other])
    assert set(answer.differing_fields) == set(thread.receipts) and not answer.ok and answer.max_abs is None


def test_the_page_says_what_the_data_say() -> None:
    """`make docs` has been run."""
    page = (FOLDER.parents[1] / "docs" / "reference" / "field-notes.md").read_text()
    assert page == generate.field_notes()
    assert all(f"[{t.name}]({t.url})" in page for t in ALL)
