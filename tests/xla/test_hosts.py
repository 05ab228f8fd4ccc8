"""Several processes of one run, as on the hosts of a pod: virtual CPU devices, whose collectives go through gloo."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.run.launch import run
from tests.plans import ROOT
from tests.xla.killed_hosts import campaign
from tests.xla_flags import QUICKLY_COMPILED

PRESET = ROOT / "plans" / "presets" / "tiny.toml"
QUICKLY = {"XLA_FLAGS": QUICKLY_COMPILED}


def trained(processes: int, folder: Path, steps: int, *more: str) -> dict[str, Any]:
    """The receipt of so many steps on four devices that these processes share."""
    receipt = folder / f"{processes}.json"
    worker = [sys.executable, "-m", "planc.trainer.run.worker", "--preset", str(PRESET), "--target", "xla"]
    argv = [*worker, "--receipt", str(receipt), "--steps", str(steps), *more]
    finished = run(argv, processes, env=QUICKLY, timeout_s=600)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-2000:]
    return dict(json.loads(receipt.read_text()))


@pytest.mark.launch
@pytest.mark.long
def test_two_processes_and_then_four_train_as_one_to_the_bit(tmp_path: Path) -> None:
    """Two processes save after three steps, each its own parts, and four go on from there."""
    saved = tmp_path / "saved"
    one = trained(1, tmp_path, 5)
    two = trained(2, tmp_path, 3, "--checkpoint", str(saved))
    parts = [file.name for file in (saved / "step-00000003").glob("*.safetensors")]
    assert {name.split("-")[1] for name in parts} == {"00000", "00001"}
    four = trained(4, tmp_path, 5, "--checkpoint", str(saved), "--resume")
    assert two["losses"] == one["losses"][:3]
    assert (four["losses"], four["grad_norms"]) == (one["losses"], one["grad_norms"])


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
def test_a_killed_process_ends_the_run_and_the_run_goes_on(tmp_path: Path) -> None:
    """One of two processes is killed, twice: no process is left, and what is resumed ends as one process does."""
    found = +campaign(2, 2, tmp_path)
    assert found["killed"] == 2 and found["equal"] >= 1
    assert set(found) == {"killed", "equal"}
