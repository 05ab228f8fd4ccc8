"""A slice of the long fuzz run: its inputs can be repeated, reach every room, and break no promise."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from planc.diag.edits import apply_edits
from planc.driver import check
from tests.fuzz.inputs import damaged, make
from tests.fuzz.run import promise

SEED = 20


def test_an_input_is_always_the_same() -> None:
    assert [make(SEED, i) for i in range(40)] == [make(SEED, i) for i in range(40)]
    assert len({make(SEED, i) for i in range(200)}) > 190


def test_no_promise_is_broken(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for index in range(300):
        seen += promise(tmp_path / "x.plan", make(SEED, index), twice=index % 10 == 0)
    assert {"E0101", "E0102", "E0105", "E0108"} <= set(seen), seen
    assert {"costed", "E0203", "E0205", "E0501"} & set(seen), seen


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
