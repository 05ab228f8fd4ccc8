"""Sixty mistakes of the first hour: each answer says what helps, and the page of them is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.language.mistakes import ROOM, Mistake, all_rated, mistakes, rated

sys.path.insert(0, str(ROOM.parents[1] / "docs"))
import generate


def test_answers_have_three_points_each_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = all_rated()
    monkeypatch.setattr("tests.language.mistakes.all_rated", lambda: found)
    assert len(found) == len(mistakes()) == 60
    assert [(r.mistake.wrong, r.points) for r in found if len(r.points) < 3 or "helps" not in r.points] == []
    assert (ROOM.parents[1] / "docs" / "measured" / "mistakes.md").read_text() == generate.mistakes_page()


def test_the_rating_can_fail(tmp_path: Path) -> None:
    """A finding at the line is worth a point, and no more where it neither names nor mends what was meant."""
    answer = rated(Mistake("", "frobnicate 8", "tensor parallelism", "`use tp over tp`"), tmp_path)
    assert answer.points == ("where",)
