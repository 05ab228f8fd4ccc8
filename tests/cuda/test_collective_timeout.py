"""A rank that does not answer makes the others stop in time, and say what they waited for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.trainer.run.launch import run

WORKER = Path(__file__).with_name("lost_rank.py")
LIMIT_S = 5.0


@pytest.mark.long
@pytest.mark.launch
def test_the_others_stop_and_name_the_rank_the_axis_and_the_collective(tmp_path: Path) -> None:
    command = [sys.executable, str(WORKER), "fsdp_tp_sp", str(tmp_path)]
    finished = run(command, 4, env={"PLANC_TIMEOUT_S": str(LIMIT_S)}, timeout_s=240)
    said = [line for output in finished.outputs for line in output.splitlines() if line.startswith("SAID")]
    assert len(said) == 3, finished.outputs
    also = [line for output in finished.outputs for line in output.splitlines() if line.startswith("ALSO")]
    assert len(also) == 6, "every other way in which ranks speak to each other says so too"
    assert any("rank 3 did not answer" in line for line in said)
    waiting = next(line for line in said if "rank 2:" in line)
    assert "over tp (ranks 2, 3)" in waiting, "rank 2 shares its tensor axis with the rank that stopped"
    assert any(kind in waiting for kind in ("all_gather", "reduce_scatter", "all_reduce"))
