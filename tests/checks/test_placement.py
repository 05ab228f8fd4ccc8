"""W0601 offers the order of the axes that is fastest, and only orders that are."""

from itertools import permutations
from pathlib import Path

import pytest

from planc.driver import check
from tests.plans import found

PLAN = """plan example
model     llama3_8b
batch     128 x 8192 tokens microbatch 1
cluster   {cluster}
mesh      {mesh}
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
split     layers over pp as 1f1b
compute   bf16 reduce fp32
recompute blocks
"""
AXES = {"pp": 4, "fsdp": 4, "tp": 4}


def test_the_offered_order_is_the_best_of_all(tmp_path: Path) -> None:
    """Every order of three axes is checked on its own; what W0601 offers for the worst is the fastest."""
    times = {order: check(written(tmp_path, order)).step.time_s for order in permutations(AXES)}
    worst = max(times, key=times.__getitem__)
    finding = next(d for d in check(written(tmp_path, worst)).diagnostics if d.code == "W0601")
    offered = finding.fix.edits[0].text.split()[1:]
    best = min(times.values())
    assert times[tuple(word for word in offered if word in AXES)] == pytest.approx(best)
    assert f"{best:.3g} s instead of {times[worst]:.3g} s" in finding.message


def test_one_node_has_nothing_to_offer(tmp_path: Path) -> None:
    text = PLAN.format(cluster="gb200_nvl72", mesh="tp 4 > fsdp 6 > pp 3").replace(
        "llama3_8b", "llama3_8b(layers = 33)"
    )
    assert "W0601" not in {d.code for d in found(tmp_path, text)}


def written(folder: Path, order: tuple[str, ...]) -> Path:
    mesh = " > ".join(f"{name} {AXES[name]}" for name in order)
    path = folder / f"{'_'.join(order)}.plan"
    path.write_text(PLAN.format(cluster="8 x h100_node", mesh=mesh).replace("example", path.stem))
    return path
