"""The emitted programs move what those written by hand move; and torch's own count agrees with the audit's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.run.launch import run
from tests.rows import rows_of

WORKER = Path(__file__).parent / "by_hand" / "worker.py"
SCALARS_BYTES = 160
"""The loss, and the norms of a model this small: nobody's order of them is the only one."""


@pytest.fixture(scope="module")
def rows() -> Callable[[], dict[str, list[dict[str, Any]]]]:
    """For each layout, what every rank saw of both programs; one launch."""
    return cache(launched)


def launched() -> dict[str, list[dict[str, Any]]]:
    finished = run([sys.executable, str(WORKER)], 4, timeout_s=600)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    return {row["name"]: row["ranks"] for row in rows_of(finished.outputs[0])}


@pytest.mark.launch
@pytest.mark.parametrize("name", ["fsdp", "tensor", "pipeline"])
@pytest.mark.long
def test_emitted_and_by_hand_train_alike_with_the_same_collectives(name: str, rows: Any) -> None:
    for rank in rows()[name]:
        emitted, by_hand = rank["emitted"], rank["by_hand"]
        assert emitted["losses"] == pytest.approx(by_hand["losses"], rel=1e-6)
        assert emitted["unparsed"] == by_hand["unparsed"] == []
        assert sorted(map(repr, emitted["list"])) == sorted(map(repr, by_hand["list"]))
        assert _without_scalars(emitted["list"]) == _without_scalars(by_hand["list"])


def _without_scalars(calls: list[list[Any]]) -> list[list[Any]]:
    """In order."""
    found = [c for c in calls if c[0] != "all_reduce" or c[-1] > SCALARS_BYTES]
    assert found
    return found


@pytest.mark.launch
@pytest.mark.parametrize("name", ["fsdp", "tensor", "pipeline"])
@pytest.mark.long
def test_a_second_observer_counts_the_same(name: str, rows: Any) -> None:
    """torch's CommDebugMode, in a real run over gloo; it leaves out what is sent point to point."""
    for rank in rows()[name]:
        ours = [call for call in rank["emitted"]["list"] if call[0] != "send_recv"]
        assert rank["emitted"]["counted"] == len(ours) > 0
