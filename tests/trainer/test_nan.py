"""A step whose loss is no number changes nothing, and says where the number is missing; on both stacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.trainer.run.launch import run
from tests.rows import rows_of

WORKER = Path(__file__).with_name("nan.py")


@pytest.mark.launch
@pytest.mark.parametrize(
    ("stack", "processes", "place"),
    [("cuda", 2, "rank 1: parameter"), pytest.param("xla", 1, "device 1: parameter", marks=pytest.mark.long)],
)
def test_a_number_that_is_lost_on_one_rank(stack: str, processes: int, place: str) -> None:
    done = run([sys.executable, str(WORKER), stack], processes, timeout_s=300)
    assert done.ok, done.outputs[done.failed_rank or 0][-3000:]
    row = rows_of(done.outputs[0])[0]
    assert row["loss"] == "nan"
    assert [where[: len(place)] for where in row["where"]] == [place], row["where"]
    assert row["same"], "a parameter was updated with what is no number"
    assert (row["steps"], row["then"], row["moved"]) == (1, 2, True)
    assert 0 < row["fine"] < 10
