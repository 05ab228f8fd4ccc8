"""A slice of the long fuzz run: inputs can be repeated, come far, break no promise; what once failed is mended."""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from planc.diag.edits import apply_edits
from planc.driver import check
from tests.fuzz.inputs import damaged
from tests.fuzz.kinds import Kind, bombs, corpus, joined, kinds, split
from tests.fuzz.tally import RESULTS, summed

ROOT = Path(__file__).parents[2]
SEED = 20
KINDS = kinds()
COUNTS = {"plans": 60, "editor": 8, "presets": 10, "configs": 10, "schedules": 10, "checkpoints": 20, "bombs": 48}
ONCE = [(kind, path) for kind in KINDS.values() for path in corpus(kind)]


@pytest.mark.parametrize("name", KINDS)
def test_an_input_is_always_the_same_and_falls_into_parts(name: str) -> None:
    kind = KINDS[name]
    kind.warm()
    made = [kind.make(SEED, index) for index in range(40)]
    assert made == [kind.make(SEED, index) for index in range(40)]
    assert len(set(made)) > 30
    again = [joined(kind, split(kind, data)) for data in made]
    assert [split(kind, data) for data in again] == [split(kind, data) for data in made]


@pytest.mark.parametrize("name", KINDS)
def test_no_promise_is_broken(name: str, tmp_path: Path) -> None:
    kind, seen = KINDS[name], Counter[str]()
    kind.warm()
    for index in range(COUNTS.get(name, 25)):
        folder = tmp_path / str(index)
        folder.mkdir()
        seen.update(kind.run(kind.make(SEED, index), folder, index))
    assert len(set(kind.deep) & set(seen)) > len(kind.deep) / 2, seen


@pytest.mark.parametrize(("kind", "path"), ONCE, ids=[f"{k.name}-{p.stem}" for k, p in ONCE])
def test_what_once_failed_is_mended(kind: Kind, path: Path, tmp_path: Path) -> None:
    kind.warm()
    for index in range(3):
        folder = tmp_path / str(index)
        folder.mkdir()
        assert kind.run(path.read_bytes(), folder, index)


def test_the_long_run_came_far_in_every_kind() -> None:
    """`results.toml` has what `make fuzz` found."""
    sums, results = summed(Path("nowhere")), tomllib.loads(RESULTS.read_text())
    for name, kind in KINDS.items():
        assert not set(kind.deep) - set(sums[name].reached), name
        assert results[name]["still_failing"] == 0, name


GUESSES = ("E0101", "E0102", "E0108")
"""Their edits are the nearest legal words, which may not be what was meant."""


def test_an_offered_edit_removes_its_finding(tmp_path: Path) -> None:
    tried = 0
    for index in range(80):
        path, text = tmp_path / "x.plan", damaged(random.Random(index))
        path.write_text(text)
        before = check(path).diagnostics
        for d in before:
            if d.fix is None or d.code in GUESSES or d.severity != "error":
                continue
            path.write_text(apply_edits(text, d.fix.edits))
            after = [x.code for x in check(path).diagnostics]
            assert after.count(d.code) < [x.code for x in before].count(d.code), (index, d)
            tried += 1
    assert tried > 10


def test_every_module_that_reads_a_file_is_bombed_or_says_why_not() -> None:
    assert bombs.reading() == set(bombs.MODULES)
    assert set(bombs.READERS) == set(bombs.FORMATS)
    known = {*bombs.FORMATS, bombs.ITS_OWN, bombs.BYTES}
    for module, where in bombs.MODULES.items():
        assert where in known or (ROOT / where).is_file(), module


def test_a_reader_whose_time_is_the_square_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.compile(r"^\s*GPU0", re.MULTILINE)
    monkeypatch.setattr(bombs, "FLOOR_S", 0.02)
    monkeypatch.setitem(bombs.READERS, "toml", lambda path: found.search(path.read_text()))
    (tmp_path / "square").mkdir()
    with pytest.raises(AssertionError, match="of twice the text"):
        bombs.run(json.dumps(["toml", "", "alone", 6_000, "\n"]).encode(), tmp_path / "square", 0)
