"""A slice of the long fuzz run: its inputs can be repeated, reach every room, and break no promise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.fuzz.inputs import make
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
