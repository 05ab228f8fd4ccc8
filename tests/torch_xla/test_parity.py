"""Every layout trains on torch_xla as torch alone does with the same module: losses, gradients, parameters; what is
compiled and what is read; and where state rests.

One process of four virtual devices holds all cases; each test reads its row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planc.trainer.run.launch import run
from tests.rows import parity_rows
from tests.torch_xla.cases import LAYOUTS, layout

PYTHON = Path(__file__).resolve().parents[2] / ".venv-torch-xla" / "bin" / "python"
WORKER = Path(__file__).with_name("worker.py")
NEAR = 1e-5

IN_CI = ("zero1", "fsdp_tp_sp")
CASES = [pytest.param(name, marks=[] if name in IN_CI else [pytest.mark.slow]) for name in LAYOUTS]

pytestmark = [pytest.mark.launch, pytest.mark.torch_xla]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The differences of every selected case, by name."""
    selected = [
        item.callspec.params["name"]
        for item in request.session.items
        if hasattr(item, "callspec") and item.module is request.module
    ]
    done = run([str(PYTHON), str(WORKER), *dict.fromkeys(selected)], 1, timeout_s=3600)
    assert done.ok, done.outputs[0]
    return parity_rows("torch_xla", done.outputs[0])


@pytest.mark.parametrize("name", CASES)
def test_trains_as_torch_alone(rows: dict[str, Any], name: str) -> None:
    row = rows[name]
    assert "failed" not in row, row["failed"]
    assert not row["dead"], "a gradient that is zero everywhere proves nothing"
    assert row["clips"], "clipping must take part"
    assert max(row["gradient"]) <= NEAR, row
    assert max(row["loss"], row["evaluated"], row["norm"], row["parameters"]) <= NEAR, row


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_compiled_or_read_after_the_first_step(rows: dict[str, Any], name: str) -> None:
    row = rows[name]
    assert "failed" not in row, row["failed"]
    assert row["uncached"] == 0
    assert row["scalar_reads"] == 0
    assert row["reads_of_a_leak"] == 1, "the counter must see a read where there is one"


@pytest.mark.parametrize("name", CASES)
def test_state_is_divided_and_restored(rows: dict[str, Any], name: str) -> None:
    row = rows[name]
    assert "failed" not in row, row["failed"]
    assert row["resumed"]["same"] and not row["resumed"]["misplaced"]
    weights = {
        kind: row["layouts"][f"{kind}.layers.0.attention.wq.weight"] for kind in ("params", "exp_avg", "exp_avg_sq")
    }
    stored = {kind: bool(layout(name).store(noun)) for kind, noun in (("params", "params"), ("exp_avg", "optimizer"))}
    divided = {kind: weights[kind].startswith("{devices=") for kind in stored}
    tensor_parallel = "tp" in layout(name).mesh.sizes
    assert divided == {kind: stored[kind] or tensor_parallel for kind in stored}
    assert weights["exp_avg"] == weights["exp_avg_sq"]
