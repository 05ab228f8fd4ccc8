"""Deterministic mode gives the same bits at every run, on every rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.trainer.run.launch import run

WORKER = Path(__file__).with_name("rerun.py")
NAMES = ("ring_fsdp", "zbv", "hsdp")


@pytest.mark.launch
@pytest.mark.long
def test_two_runs_have_the_same_bits() -> None:
    finished = run([sys.executable, str(WORKER), *NAMES], 4, timeout_s=300)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    for rank, output in enumerate(finished.outputs):
        said = [line for line in output.splitlines() if line.startswith(("SAME", "DIFFERENT"))]
        assert said == [f"SAME {name} {rank}" for name in NAMES]
