"""Every layout trains on torch_xla as torch alone does with the same module: losses, gradients, parameters; what is
compiled and what is read; and where state rests.

One process of four virtual devices holds all cases; each test reads its row.
"""

from __future__ import annotations

import pytest

from planc.ir.plan import Noun
from tests.launches import Row, case, tier
from tests.torch_xla.cases import LAYOUTS, layout

NEAR = 1e-5

IN_CI = ("mixtral_capacity",)
CASES = [case("torch_xla", name, *tier(name, IN_CI, ())) for name in LAYOUTS]

STORED: tuple[tuple[str, Noun], ...] = (("params", "params"), ("exp_avg", "optimizer"))

pytestmark = pytest.mark.torch_xla


@pytest.mark.parametrize("name", CASES)
def test_trains_as_torch_alone(name: str, row: Row) -> None:
    assert "failed" not in row, row["failed"]
    assert not row["dead"], "a gradient that is zero everywhere proves nothing"
    assert row["clips"], "clipping must take part"
    assert max(row["gradient"]) <= NEAR, row
    assert max(row["loss"], row["evaluated"], row["norm"], row["parameters"]) <= NEAR, row


@pytest.mark.parametrize("name", CASES)
def test_blocks_run_again_behind_a_barrier(name: str, row: Row) -> None:
    """A product has two in its backward; of a replayed block all run again but the last, which no gradient needs."""
    assert "failed" not in row, row["failed"]
    plan = layout(name)
    layers, found = plan.model.sizes["layers"], row["products"]
    again = layers // plan.recompute.every if plan.recompute.blocks else 0
    assert found["barriers"] == again
    if not plan.model.top_k:  # those of experts are products of more than two tensors
        replayed = again * ((found["forward"] - 1) // layers - 1)
        assert found["both"] == 3 * found["forward"] + replayed


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_compiled_or_read_after_the_first_step(name: str, row: Row) -> None:
    assert "failed" not in row, row["failed"]
    assert row["uncached"] == 0
    assert row["scalar_reads"] == 0
    assert row["reads_of_a_leak"] == 1, "the counter must see a read where there is one"


@pytest.mark.parametrize("name", CASES)
def test_state_is_divided_and_restored(name: str, row: Row) -> None:
    assert "failed" not in row, row["failed"]
    assert row["resumed"]["same"] and not row["resumed"]["misplaced"]
    weights = {
        kind: row["layouts"][f"{kind}.layers.0.attention.wo.weight"] for kind in ("params", "exp_avg", "exp_avg_sq")
    }
    stored = {kind: bool(layout(name).store(noun)) for kind, noun in STORED}
    divided = {kind: weights[kind].startswith("{devices=") for kind in stored}
    tensor_parallel = "tp" in layout(name).mesh.sizes
    assert divided == {kind: stored[kind] or tensor_parallel for kind in stored}
    assert weights["exp_avg"] == weights["exp_avg_sq"]
