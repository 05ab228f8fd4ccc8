"""Where axes lie, and what a collective over them takes."""

from pathlib import Path

import pytest

from planc.cost.network import collective_s
from planc.cost.topology import span_of, torus_dims
from tests.plans import BODY, HEAD, plan_of

TORUS = """plan example
model     llama3_8b
batch     256 x 8192 tokens microbatch 1
cluster   tpu_v5p({shape})
mesh      fsdp {fsdp} > tp {tp}
"""


def test_axes_fill_a_node_from_the_inside(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD + BODY)
    tp, fsdp = (span_of(plan.mesh, plan.cluster, (a,)) for a in ("tp", "fsdp"))
    assert (tp.inside, tp.outside, tp.level) == (8, 1, "nvlink4")
    assert (fsdp.inside, fsdp.outside, fsdp.level) == (1, 8, "leaf")


def test_an_axis_may_lie_across(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD.replace("fsdp 8 > tp 8", "fsdp 16 > tp 4") + BODY)
    span = span_of(plan.mesh, plan.cluster, ("fsdp",))
    assert (span.inside, span.outside) == (2, 8)


def test_a_node_shares_its_way_out(tmp_path: Path) -> None:
    """400 GB/s a node, 90 % of it, over eight devices that send at once."""
    plan = plan_of(tmp_path, HEAD + BODY)
    span = span_of(plan.mesh, plan.cluster, ("fsdp",))
    assert span.outside_bytes_per_s == pytest.approx(0.9 * 400e9 / 8)
    expected = 1e9 * 7 / 8 / (0.9 * 50e9)
    assert collective_s("all_gather", 1e9, span) == pytest.approx(expected, rel=2e-3)


def test_an_all_reduce_is_a_scatter_and_a_gather(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD + BODY)
    span = span_of(plan.mesh, plan.cluster, ("tp",))
    both = collective_s("reduce_scatter", 1e8, span) + collective_s("all_gather", 1e8, span)
    assert collective_s("all_reduce", 1e8, span) == pytest.approx(both)


def test_axes_of_a_torus_prefer_whole_rings(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TORUS.format(shape="4x8x8", fsdp=64, tp=4) + BODY)
    assert torus_dims(plan.mesh, plan.cluster) == {"tp": (True,), "fsdp": (True, True)}


def test_a_cut_ring_has_no_wrap(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TORUS.format(shape="8x8x4", fsdp=128, tp=2) + BODY)
    assert torus_dims(plan.mesh, plan.cluster)["tp"] == (False,)


def test_more_rings_gather_faster(tmp_path: Path) -> None:
    """One v5p axis moves 180 GB/s both ways together; two move twice that."""
    plan = plan_of(tmp_path, TORUS.format(shape="4x8x8", fsdp=64, tp=4) + BODY)
    tp, fsdp = (span_of(plan.mesh, plan.cluster, (a,)) for a in ("tp", "fsdp"))
    assert tp.inside_bytes_per_s == pytest.approx(0.9 * 180e9)
    assert fsdp.inside_bytes_per_s == pytest.approx(2 * tp.inside_bytes_per_s)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv"])
def test_more_bytes_never_take_less_time(tmp_path: Path, op) -> None:
    plan = plan_of(tmp_path, HEAD + BODY)
    for axes in (("fsdp",), ("tp",), ("fsdp", "tp")):
        span = span_of(plan.mesh, plan.cluster, axes)
        times = [collective_s(op, n, span) for n in (0, 1, 1e3, 1e6, 1e9, 1e12)]
        assert times == sorted(times)
