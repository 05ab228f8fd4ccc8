"""A step is lowered to one program in every process and after every step; its state is given up, and saved whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.run.launch import run
from tests.rows import rows_of

STABLE = Path(__file__).with_name("stable.py")
NAMES = ("circular", "ring_in_order")


def rows(steps: int, *names: str) -> dict[str, dict[str, Any]]:
    done = run([sys.executable, str(STABLE), str(steps), *names], 1, timeout_s=600)
    assert done.ok, done.outputs[0][-4000:]
    return {row["name"]: row for row in rows_of(done.outputs[0])}


@pytest.mark.launch
@pytest.mark.long
def test_the_lowered_step_is_the_same_after_steps_and_in_another_process() -> None:
    first, again = rows(3, *NAMES), rows(0, *NAMES)
    for name in NAMES:
        assert len(first[name]["hashes"]) == 4 and len(set(first[name]["hashes"])) == 1
        assert again[name]["hashes"] == first[name]["hashes"][:1]
        assert first[name]["astray"] == [] and first[name]["changed"] == []
        assert first[name]["given_up"], "a step keeps the old state beside the new one"
    assert first["circular"]["hashes"] != first["ring_in_order"]["hashes"]
