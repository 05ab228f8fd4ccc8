"""Probes and steps on virtual devices; `docs/guide/calibrating.md` measures with gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.calibration.cpu_contention import CALM
from planc.calibration.probes import OPS
from planc.ir.probe import Probe
from planc.trainer.measure.coordinator import MeasuringError, measure
from planc.trainer.measure.worker import PATIENCE, PATIENCE_S

PLAN = """plan small
model     llama_micro
batch     4 x 16 tokens microbatch 1
cluster   2 x cpu_local
mesh      dp 2
use       ddp over dp
compute   fp32 reduce fp32
"""


@pytest.mark.long
@pytest.mark.launch
def test_probes_and_steps_are_measured_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "small.plan"
    path.write_text(PLAN)
    probes = [
        Probe(kind="matmul", sizes=(64, 64, 64)),
        Probe(kind="matmul", sizes=(64, 64, 64), dtype="bf16"),
        Probe(kind="stream", sizes=(2**16,)),
        Probe(kind="attention", sizes=(1, 2, 32, 16)),
        *(Probe(kind="collective", sizes=(2, 2**12), op=op) for op in OPS),
    ]
    heard: list[tuple[int, int]] = []
    found = measure(
        "xla", 2, probes, [path], steps=2, window_s=0.001, timeout_s=300, tell=lambda *done: heard.append(done)
    )
    assert [m.probe for m in found.probes] == probes
    assert all(m.seconds > 0 for m in found.probes)
    assert list(found.steps) == ["small"] and 2 <= len(found.steps["small"]) <= 2 * PATIENCE
    calm = [share <= CALM for share in found.others["small"]]
    assert sum(calm) == 2 or len(calm) == 2 * PATIENCE or sum(found.steps["small"]) > PATIENCE_S
    assert 0 < found.step_s("small") <= max(found.steps["small"]) and 0 <= found.disturbed("small") < 1
    assert heard[-1] == (len(probes) + 1, len(probes) + 1)


@pytest.mark.launch
def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(MeasuringError, match="was read before"):
        measure("xla", 2, plans=[tmp_path / "none.plan"], timeout_s=300)
