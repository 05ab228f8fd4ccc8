"""The emitted programs compile to the collectives of those written by hand, to the byte, and train alike."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.run.launch import run
from tests.rows import rows_of
from tests.xla_flags import QUICKLY_COMPILED

WORKER = Path(__file__).parent / "by_hand" / "worker.py"
KINDS = {
    "fsdp": {"all_gather fsdp", "all_reduce fsdp"},
    "kernel": {"all_gather fsdp", "all_reduce fsdp"},
    "tensor": {"all_gather fsdp", "all_gather tp", "all_reduce fsdp", "all_reduce tp"},
    "pipeline": {f"{op} pp" for op in ("all_gather", "all_reduce", "all_to_all", "send_recv")}
    | {"all_gather fsdp", "all_reduce fsdp"},
}


@cache
def rows() -> dict[str, dict[str, Any]]:
    """For each layout, what both programs are; one process."""
    quick = {"XLA_FLAGS": QUICKLY_COMPILED}
    done = run([sys.executable, str(WORKER)], 1, env=quick, timeout_s=900)
    assert done.ok, done.outputs[0][-4000:]
    return {row["name"]: row for row in rows_of(done.outputs[0])}


@pytest.mark.launch
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.long
def test_emitted_and_by_hand_train_alike_with_the_same_collectives(name: str) -> None:
    emitted, by_hand = rows()[name]["emitted"], rows()[name]["by_hand"]
    assert emitted["losses"] == pytest.approx(by_hand["losses"], rel=1e-6)
    assert emitted["losses"][-1] < emitted["losses"][0]
    assert emitted["wire_bytes"] == by_hand["wire_bytes"]
    assert {key.rpartition(" ")[0] for key in emitted["wire_bytes"]} == KINDS[name]


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
def test_the_tpu_compiler_makes_as_much_of_both_with_the_same_kernel() -> None:
    done = run([sys.executable, str(WORKER.with_name("on_tpu.py"))], 1, timeout_s=3000)
    assert done.ok, done.outputs[0][-4000:]
    ((emitted, by_hand),) = ((row["emitted"], row["by_hand"]) for row in rows_of(done.outputs[0]))
    assert emitted["kernels"] == by_hand["kernels"] == 4
    sent, by_hands = emitted["wire_bytes"], by_hand["wire_bytes"]
    assert {*sent} == {*by_hands} and sent["all_gather fsdp fp32"] == by_hands["all_gather fsdp fp32"]
    assert 0.98 * sum(by_hands.values()) <= sum(sent.values()) <= sum(by_hands.values())
    assert emitted["cycles"] <= 1.02 * by_hand["cycles"]
    assert emitted["peak_bytes"] <= by_hand["peak_bytes"]
