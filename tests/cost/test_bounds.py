"""The rooflines of a plan agree with what the step model says of the same transfers and matmuls."""

from dataclasses import replace
from pathlib import Path

import pytest

from planc.costing.bounds import Bound, bounds
from planc.costing.machine.collective_time import limit_s
from planc.costing.machine.group import device_group
from planc.driver import examine
from planc.ir.plan import Plan
from tests.plans import FIELD, plan_of

DATA = """plan data
model     llama3_8b
batch     128 x {tokens} tokens microbatch 1
cluster   16 x h100_node
mesh      fsdp 128
use       fsdp over fsdp
compute   bf16
"""


def of_axis(plan: Plan, axis: str) -> Bound:
    (found,) = [b for b in bounds(plan) if b.axis == axis]
    return found


@pytest.mark.parametrize("tokens", [256, 512, 4096, 8192])
def test_weights_hide_beside_enough_tokens(tmp_path: Path, tokens: int) -> None:
    """Far from the limit, blocks' gathers and reductions wait on one side of it and not on the other."""
    plan = plan_of(tmp_path, DATA.format(tokens=tokens))
    chip = replace(plan.cluster.chip, dispatch_s=0.0, contention=0.0)  # a host that is fast, cores for both
    plan = replace(plan, cluster=replace(plan.cluster, chip=chip))
    bound = of_axis(plan, "fsdp")
    assert bound.has == tokens
    costed = examine(plan).costed
    assert costed is not None
    moved = [r for r in costed.collectives if r.row.section == "block" and r.row.phase != "forward"]
    hidden = 1 - sum(r.exposed_s for r in moved) / sum(r.time_s for r in moved)
    assert bound.by_compute == (hidden > 0.9), (bound, hidden)


def test_a_layer_moves_as_long_as_it_computes_at_the_limit(tmp_path: Path) -> None:
    """2 bytes a weight twice, over 128 ranks, against 4 FLOPs a weight and token."""
    plan = plan_of(tmp_path, DATA.format(tokens=1024))
    weights, chip = 218_103_808, plan.cluster.chip
    moved_s = 2 * limit_s("all_gather", 2.0 * weights, device_group(plan.mesh, plan.cluster, ("fsdp",)))
    rate = chip.flops_per_s["bf16"] * chip.matmul_efficiency
    assert 4 * weights * of_axis(plan, "fsdp").limit / rate == pytest.approx(moved_s, rel=0.01)


@pytest.mark.parametrize("path", FIELD, ids=lambda p: p.stem)
def test_every_plan_has_its_own(path: Path) -> None:
    costed = examine(path).costed
    assert costed is not None
    plan = costed.sharded.plan
    found = bounds(plan)
    assert all(b.has > 0 and b.limit > 0 for b in found)
    assert len({b.what for b in found}) == len(found)
