"""Five machines of the field that are neither towers nor rings, with their sources: costed over their links."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import pytest

from planc.costing.machine.collective_time import transfer_s
from planc.costing.machine.group import device_group
from planc.costing.routes.bound import gather_bound_s
from planc.driver import check, load
from planc.graph import machine_links
from planc.ir.plan import Plan
from tests.plans import written

MACHINES = Path(__file__).parent / "machines"
MESHES = {
    "dgx_a100_pcie": "fsdp 4 > tp 8",
    "l40s_two_sockets": "fsdp 2 > tp 4",
    "slingshot_dragonfly": "fsdp 32 > tp 8",
    "nvl72_rails": "fsdp 72 > tp 8",
    "v5p_line": "fsdp 8 > tp 4",
}
PLAN = """plan example
import    "{machine}.plan"
model     llama3_8b
batch     1152 x 2048 tokens microbatch 1
cluster   {machine}
mesh      {mesh}
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
"""


def written_on(folder: Path, machine: str) -> Path:
    copy(MACHINES / f"{machine}.plan", folder)
    batch = "1152" if machine == "nvl72_rails" else "1024"
    return written(folder, PLAN.format(machine=machine, mesh=MESHES[machine]).replace("1152", batch))


def plan_on(folder: Path, machine: str) -> Plan:
    return load(written_on(folder, machine))


@pytest.mark.parametrize("machine", MESHES)
def test_a_plan_on_it_is_costed_and_its_busiest_links_named(machine: str, tmp_path: Path) -> None:
    report = check(written_on(tmp_path, machine))
    assert not [d for d in report.diagnostics if d.severity == "error"], report.diagnostics
    plan = plan_on(tmp_path, machine)
    names = {v.name for v in machine_links(plan.cluster).vertices}
    assert report.step.time_s > 0
    assert all(set(a.level.split("-")) <= names for a in report.axes), report.axes


def test_every_file_says_where_its_numbers_come_from() -> None:
    files = sorted(MACHINES.glob("*.plan"))
    assert [f.stem for f in files] == sorted(MESHES)
    assert all(f.read_text().count("\n#") >= 2 for f in files)


def seconds(plan: Plan, axis: str, op: str = "all_gather") -> float:
    """Seconds a byte of a large buffer."""
    return transfer_s(op, 1e12, device_group(plan.mesh, plan.cluster, (axis,))) / 1e12  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", MESHES)
def test_no_gather_over_the_whole_machine_beats_the_cut(machine: str, tmp_path: Path) -> None:
    plan = plan_on(tmp_path, machine)
    group = device_group(plan.mesh, plan.cluster, ("fsdp", "tp"))
    members = range(plan.mesh.devices)
    links = machine_links(plan.cluster)
    least = gather_bound_s(links, members) if len(links.devices) <= 32 else 0.0
    assert transfer_s("all_gather", 1e12, group) / 1e12 >= least * (1 - 1e-9)


def test_two_sockets_share_one_way(tmp_path: Path) -> None:
    """Four rings of two cross between the sockets at 40 GB/s: slower than four GPUs on a switch."""
    plan = plan_on(tmp_path, "l40s_two_sockets")
    assert seconds(plan, "fsdp") == pytest.approx(4 * 0.5 / 40e9, rel=0.01)
    assert seconds(plan, "tp") == pytest.approx(0.75 / (32e9 * 0.8), rel=0.01)


def test_every_gpu_of_a_rail_has_its_own_card(tmp_path: Path) -> None:
    """DGX A100: eight rings of four over cards of 25 GB/s, each beside its GPU's PCIe switch."""
    plan = plan_on(tmp_path, "dgx_a100_pcie")
    assert seconds(plan, "fsdp") == pytest.approx(0.75 / (25e9 * 0.95), rel=0.01)
    assert seconds(plan, "tp") == pytest.approx(7 / 8 / (300e9 * 0.77), rel=0.01)
