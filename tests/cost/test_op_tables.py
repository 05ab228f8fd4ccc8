"""Op tables: measured rates by size in a hardware file, what is read from them, and which mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.calibration.probes import neighbour_group
from planc.costing import cost_plan
from planc.costing.compute.gemm import gemm_s, product_table
from planc.costing.compute.shapes import Gemm
from planc.costing.explain import explain
from planc.costing.machine.collective_time import transfer_s
from planc.diag.errors import PlanError
from planc.driver import load
from planc.ir.hardware import Cluster
from planc.sharding.collectives import semantic_collectives
from planc.syntax.fmt import format_text
from tests.plans import ROOT, propagated

HARDWARE = (ROOT / "plans/hardware/cpu_local.plan").read_text()
MATMUL = (
    "measured matmul of cpu_process in fp32 (64x64x64 at 5 GFLOP/s, 64x64x256 at 8 GFLOP/s, 64x256x64 at 8 GFLOP/s, "
    "64x256x256 at 20 GFLOP/s, 256x64x64 at 9 GFLOP/s, 256x64x256 at 16 GFLOP/s, 256x256x64 at 15 GFLOP/s, "
    "256x256x256 at 40 GFLOP/s)\n"
)
REDUCE = "measured all_reduce over 4 of local (1 KiB at 1 MB/s, 1 MiB at 200 MB/s, 32 MiB at 300 MB/s)\n"
ATTENTION = "measured attention of cpu_process in fp32 (1x4x64x32 at 2 GFLOP/s, 1x4x256x32 at 6 GFLOP/s)\n"
PEAK = 50e9


def cluster_with(folder: Path, *tables: str) -> Cluster:
    return load(plan_with(folder, *tables)).cluster


def plan_with(folder: Path, *tables: str) -> Path:
    (folder / "mine.plan").write_text(HARDWARE + "".join(tables))
    path = folder / "p.plan"
    path.write_text(
        'plan p\nimport "mine.plan"\nmodel llama_tiny\nbatch 32 x 64 tokens microbatch 2\ncluster 4 x cpu_local\n'
        "mesh fsdp 4\nuse fsdp over fsdp\noptimizer adamw\ncompute fp32 reduce fp32\n"
    )
    return path


def explained(path: Path) -> list[str]:
    sharded = propagated(load(path))
    return [s.why for s in explain(cost_plan(sharded, semantic_collectives(sharded)))]


def matmul_s(cluster: Cluster, m: float, n: float, k: float, dtype: str = "fp32") -> float:
    return gemm_s(Gemm(m, n, k), cluster.chip, 1 / (0.6 * PEAK), 4, dtype=dtype)


def test_a_measured_size_takes_what_was_measured(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, MATMUL, REDUCE)
    assert matmul_s(cluster, 64, 256, 256) == pytest.approx(2 * 64 * 256 * 256 / 20e9, rel=1e-9)
    assert matmul_s(cluster, 256, 64, 64) == pytest.approx(2 * 256 * 64 * 64 / 9e9, rel=1e-9)
    group = neighbour_group(cluster, 4)
    assert transfer_s("all_reduce", 2**20, group) == pytest.approx(2**20 / 200e6, rel=1e-9)


def test_seconds_grow_between_and_beyond_the_measured_sizes(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, MATMUL, REDUCE)
    for sides in ((0,), (1,), (2,), (0, 1, 2)):
        each = []
        for size in range(16, 1024, 16):
            m, n, k = (float(size) if d in sides else 128.0 for d in range(3))
            each.append(matmul_s(cluster, m, n, k))
        assert each == sorted(each) and len({*each}) == len(each)
    group = neighbour_group(cluster, 4)
    moved = [transfer_s("all_reduce", 2.0 ** (n / 2), group) for n in range(12, 60)]
    assert moved == sorted(moved)


def test_no_matmul_is_faster_than_the_peak(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, MATMUL.replace("at 40 GFLOP/s", "at 50 GFLOP/s"))
    for n in (64, 200, 256, 300, 1024, 8192):
        assert matmul_s(cluster, n, n, n) >= 2 * n**3 / PEAK * (1 - 1e-12)


def test_without_a_table_the_curve_answers(tmp_path: Path) -> None:
    cluster, bare = cluster_with(tmp_path, MATMUL), cluster_with(tmp_path)
    assert bare.chip.tables == ()
    assert product_table(Gemm(64, 64, 64), cluster.chip, "bf16") is None
    assert matmul_s(cluster, 64, 64, 64, "bf16") == matmul_s(bare, 64, 64, 64, "bf16")
    assert product_table(Gemm(64, 64, 64, groups=2), cluster.chip, "fp32") is None
    same = neighbour_group(cluster, 4), neighbour_group(bare, 4)
    assert transfer_s("all_gather", 2**20, same[0]) == transfer_s("all_gather", 2**20, same[1])


def test_explain_says_that_seconds_are_from_a_table(tmp_path: Path) -> None:
    with_tables = explained(plan_with(tmp_path, MATMUL, ATTENTION))
    assert any(why.endswith("by the table of matmul in fp32") for why in with_tables)
    assert any(why.endswith("by the table of attention in fp32") for why in with_tables)
    assert not any("table" in why for why in explained(plan_with(tmp_path)))


def test_a_table_is_formatted_as_it_was_written(tmp_path: Path) -> None:
    once = format_text(HARDWARE + MATMUL + REDUCE)
    assert format_text(once) == once and "64x256x256 at 20 GFLOP/s" in once
    (tmp_path / "again").mkdir()
    (tmp_path / "again/mine.plan").write_text(once)
    path = tmp_path / "again/p.plan"
    path.write_text(plan_with(tmp_path, MATMUL, REDUCE).read_text())
    assert load(path).cluster.chip.tables == cluster_with(tmp_path, MATMUL, REDUCE).chip.tables


MISTAKES = {
    "above the peak": (MATMUL.replace("40 GFLOP/s", "51 GFLOP/s"), "E0103", "above the fp32 rate"),
    "no grid": (MATMUL.replace(", 256x256x256 at 40 GFLOP/s", ""), "E0103", "256x256x256 is missing"),
    "twice": (ATTENTION.replace("256x32", "64x32"), "E0103", "there twice"),
    "other dims": (ATTENTION.replace("1x4x64x32", "4x64x32"), "E0103", "a size of attention is"),
    "no dtype": (MATMUL.replace(" in fp32", ""), "E0103", "has no dtype"),
    "a dtype of bytes": (REDUCE.replace("local", "local in fp32"), "E0103", "whatever the dtype"),
    "no group": (REDUCE.replace(" over 4", ""), "E0103", "measured over a group"),
    "a group of a chip": (MATMUL.replace("matmul of", "matmul over 4 of"), "E0103", "is of one device"),
    "two tables": (MATMUL + MATMUL, "E0107", "has two tables"),
    "unknown op": (MATMUL.replace("matmul", "matmull"), "E0108", "matmull"),
    "unknown chip": (MATMUL.replace("cpu_process", "cpu_proces"), "E0108", "cpu_proces"),
    "a chip's collective": (REDUCE.replace("local", "cpu_process"), "E0108", "cpu_process"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_table_is_a_diagnostic(name: str, tmp_path: Path) -> None:
    table, code, words = MISTAKES[name]
    with pytest.raises(PlanError) as caught:
        load(plan_with(tmp_path, table))
    assert any(d.code == code and words in f"{d.message}" for d in caught.value.diagnostics), caught.value.diagnostics
