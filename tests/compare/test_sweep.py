"""A sweep's rows are what `check` says of the plan with that number written in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.cli.views.sweep_text import csv, curves, error_summary, picture
from planc.compare.plan_edit import NotWrittenError, rewritten
from planc.compare.sweep import Sweep, sweep
from planc.compare.sweep_values import Varied, at, parse_over
from planc.diag.errors import PlanError
from planc.driver import check, load
from tests.plans import BODY, HEAD, ROOT

PLAN = HEAD + BODY
H100 = ROOT / "plans/llama3_70b_h100.plan"


def swept(tmp_path: Path, over: str, text: str = PLAN, **options: object) -> Sweep:
    path = tmp_path / "x.plan"
    path.write_text(text)
    return sweep(path, parse_over(over), **options)  # type: ignore[arg-type]


def written(text: str, name: str, value: int, tmp_path: Path, **options: object) -> str:
    path = tmp_path / "x.plan"
    path.write_text(text)
    return at(Varied(text, load(path), **options), name, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "old", "new"),
    [
        ("batch", 128, "64 x 8192 tokens microbatch 1", "128 x 8192 tokens microbatch 1"),
        ("sequence", 4096, "64 x 8192 tokens microbatch 1", "64 x 4096 tokens microbatch 1"),
        ("microbatch", 2, "tokens microbatch 1", "tokens microbatch 2"),
        ("devices", 128, "8 x h100_node\nmesh      fsdp 8", "16 x h100_node\nmesh      fsdp 16"),
        ("fsdp", 4, "8 x h100_node\nmesh      fsdp 8", "4 x h100_node\nmesh      fsdp 4"),
        ("tp", 4, "8 x h100_node\nmesh      fsdp 8 > tp 8", "4 x h100_node\nmesh      fsdp 8 > tp 4"),
    ],
)
def test_a_value_is_one_number_written_otherwise(name: str, value: int, old: str, new: str, tmp_path: Path) -> None:
    assert old in PLAN and written(PLAN, name, value, tmp_path) == PLAN.replace(old, new)


def test_the_rows_are_what_check_says(tmp_path: Path) -> None:
    found = swept(tmp_path, "devices=32,64,128")
    for row, nodes in zip(found.rows, (4, 8, 16), strict=True):
        text = PLAN.replace("8 x h100", f"{nodes} x h100").replace("fsdp 8", f"fsdp {nodes}")
        (tmp_path / "x.plan").write_text(text)
        report = check(tmp_path / "x.plan")
        assert report.step and report.memory and row.costs
        assert (row.costs.time_s, row.costs.mfu) == (report.step.time_s, report.step.mfu)
        assert row.costs.memory_gib == report.memory.per_device_gib.total
        assert row.devices == row.value and row.ok


def test_a_figure_of_the_machine_is_varied_in_percent(tmp_path: Path) -> None:
    """As the hardware file with that figure would be costed; memory does not change."""
    found = swept(tmp_path, "nvlink4.bandwidth=50,100")
    half, same = (row.costs for row in found.rows)
    step = check(tmp_path / "x.plan").step
    assert step and half and same and same.time_s == step.time_s
    hardware = (ROOT / "plans/hardware/h100.plan").read_text()
    link = next(line for line in hardware.splitlines() if "link" in line and "nvlink4" in line)
    slow = hardware.replace(link, link.replace("450 GB/s", "225 GB/s")).replace("h100", "slow")
    assert link != link.replace("450 GB/s", "225 GB/s")
    (tmp_path / "slow.plan").write_text(slow)
    (tmp_path / "y.plan").write_text(PLAN.replace("h100", "slow").replace("\n", '\nimport "slow.plan"\n', 1))
    report = check(tmp_path / "y.plan")
    assert report.step and half.time_s == pytest.approx(report.step.time_s, rel=1e-9) and half.time_s > same.time_s
    assert half.memory_gib == same.memory_gib
    less = swept(tmp_path, "nvlink4.latency=50,200").rows
    assert less[0].costs and less[1].costs and less[0].costs.time_s < same.time_s < less[1].costs.time_s


def test_weak_scaling_grows_the_batch(tmp_path: Path) -> None:
    text = written(PLAN, "devices", 256, tmp_path, weak=True)
    assert "batch     256 x 8192" in text and "fsdp 32 > tp 8" in text
    found = swept(tmp_path, "devices=64,256", weak=True)
    one, other = (row.costs for row in found.rows)
    assert one and other and other.tokens_per_s_per_device == pytest.approx(one.tokens_per_s_per_device, rel=0.1)


def test_another_axis_takes_the_devices(tmp_path: Path) -> None:
    assert "fsdp 8 > tp 4" in written(PLAN, "devices", 32, tmp_path, axis="tp")


def test_a_few_devices_are_part_of_a_node(tmp_path: Path) -> None:
    text = written(PLAN, "tp", 4, tmp_path).replace("fsdp 8 > tp 4", "fsdp 1 > tp 8").replace("4 x h100", "1 x h100")
    assert "cluster   h100_node(2)" in written(text, "tp", 2, tmp_path)
    found = swept(tmp_path, "tp=1..8", text=text)
    assert [row.devices for row in found.rows] == [1, 2, 4, 8]


def test_slices_and_views_grow_too(tmp_path: Path) -> None:
    text = (ROOT / "plans/field/mixtral_8x22b_hsdp.plan").read_text()
    assert "view      efsdp 8 > ep 8 of fsdp, tp" in text
    found = swept(tmp_path, "devices=64..256", text=text)
    assert [row.ok for row in found.rows] == [True] * 3
    slices = (ROOT / "plans/field/llama3_70b_v5p_2slices.plan").read_text()
    found = swept(tmp_path, "devices=512,1024,100", text=slices)
    assert [row.costs is not None for row in found.rows] == [True, True, False]
    assert "not" in found.rows[2].why


def test_errors_stand_in_their_row(tmp_path: Path) -> None:
    """Neither heads that do not divide, nor memory that does not suffice, nor an odd count ends the sweep."""
    found = sweep(H100, parse_over("tp=3,4,8,16"))
    codes = [error_summary(row).split(" ")[0] for row in found.rows]
    assert codes[1:] == ["E0501", "", "E0301"]
    assert not found.rows[0].ok and found.rows[1].costs is not None and found.rows[3].costs is None
    assert len(csv(found).splitlines()) == 5 and csv(found).splitlines()[4].endswith("E0301")


def test_params_are_set(tmp_path: Path) -> None:
    found = sweep(H100, parse_over("nodes=64,128"))
    assert [row.devices for row in found.rows] == [512, 1024]


def test_a_value_without_cost_leaves_a_gap(tmp_path: Path) -> None:
    found = swept(tmp_path, "devices=64,65,128")
    assert [len(c.values) for c in curves(found)] == [3] * len(curves(found)) and len(curves(found)) >= 3
    assert picture(found).count("<polyline") == len(curves(found)) and "nan" not in picture(found)


def test_nothing_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(NotWrittenError, match="devices, batch, sequence, microbatch, fsdp, tp"):
        swept(tmp_path, "pp=2")
    with pytest.raises(NotWrittenError, match="no axis `pp`"):
        swept(tmp_path, "devices=64", axis="pp")
    with pytest.raises(PlanError):
        swept(tmp_path, "batch=64", text="plan x\nmodel nonsense\n")


def test_what_is_varied_is_read() -> None:
    assert parse_over("devices=8..64").values == (8, 16, 32, 64)
    assert parse_over("axis fsdp=3,1").values == (3, 1) and parse_over("axis fsdp=3").name == "fsdp"
    for text in ("devices", "devices=", "devices=0", "devices=a", "=3", "x=1.5", "x=9999999999", "x=4..", "x=-1"):
        with pytest.raises(ValueError, match=r".+"):  # it says why
            parse_over(text)


def test_only_a_sentence_of_its_own_is_rewritten() -> None:
    text = "plan x\nmesh fsdp 8  # why\ncluster 1 x h100_node\n"
    assert rewritten(text, "mesh", "fsdp 4") == "plan x\nmesh      fsdp 4  # why\ncluster 1 x h100_node\n"
    with pytest.raises(NotWrittenError):
        rewritten(text, "batch", "1 x 1 tokens")
