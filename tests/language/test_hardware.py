"""The hardware of the catalog and the sentences that name it."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from planc.calibration.intervals import NO_NUMBERS
from planc.costing import device_group
from planc.costing.machine.collective_time import collective_s
from planc.costing.machine.topology import bisection_bytes_per_s
from planc.driver import check
from planc.ir.base import Value
from planc.ir.hardware import Chip, Level, Link
from planc.ir.mesh import Mesh
from planc.language import library
from planc.language.verbs.hardware import CHIP, LEVEL, LINK, WHOLE, range_of
from tests.plans import BODY, HEAD, ROOT, cluster_of, found, plan_of

FILES = sorted((ROOT / "plans" / "hardware").glob("*.plan"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_hardware_file_says_where_its_numbers_come_from(path: Path) -> None:
    head, *rest = path.read_text().splitlines()
    assert head == f"hardware {path.stem}"
    assert any(line.startswith("# ") for line in rest)


@pytest.mark.parametrize("name", sorted(library.machines()))
def test_every_machine_of_the_catalog_is_whole(name: str) -> None:
    """Narrow dtypes are not slower, a second node or slice is reached, levels are slower the farther out."""
    shape = {"tpu_v5e": "(4x4)", "tpu_v6e": "(4x4)"}.get(name, "(4x4x4)" if name.startswith("tpu") else "")
    cluster = cluster_of(f"2 x {name}{shape}")
    chip = cluster.chip
    assert cluster.levels and cluster.devices == 2 * cluster.devices_per_node
    wide = chip.flops_per_s.get("bf16", chip.flops_per_s.get("fp16", 0.0))
    assert chip.flops_per_s["fp32"] < wide <= chip.flops_per_s.get("float8", float("inf")) or name == "cpu_local"
    assert chip.host_bandwidth_bytes_per_s <= chip.memory_bandwidth_bytes_per_s * 2
    speeds = [cluster.link.bandwidth_bytes_per_s * (2 if cluster.wrap else 1)]
    speeds += [v.bandwidth_bytes_per_s * cluster.hosts_per_node / cluster.devices_per_node for v in cluster.levels]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.parametrize("name", sorted(library.machines()))
def test_every_machine_and_one_chip_of_it_train_a_small_plan(name: str, tmp_path: Path) -> None:
    """Whole and alone; steps of chips that no published run used have the wide interval."""
    torus = {"tpu_v5e": "2x2", "tpu_v6e": "2x2"}.get(name, "2x2x2" if name.startswith("tpu") else "")
    for part in (f"({torus})" if torus else "", f"({'x'.join('1' * len(torus.split('x')))})" if torus else "(1)"):
        devices = cluster_of(f"1 x {name}{part}").devices
        text = f"plan one\nmodel llama3_8b(layers = 2)\nbatch {devices} x 512 tokens microbatch 1\n"
        text += f"cluster 1 x {name}{part}\nmesh fsdp {devices}\nuse fsdp over fsdp\ncompute fp32\n"
        (tmp_path / "one.plan").write_text(text)
        report = check(tmp_path / "one.plan", target="none")
        assert not [d for d in report.diagnostics if d.code.startswith("E") and d.code != "E0501"], (name, part)
        assert report.step is not None and report.step.time_s > 0 and report.uncertainty is not None
        known = name.startswith(("a100", "a800", "h100", "h200", "h800", "b200", "b300", "gb", "tpu"))
        assert (report.uncertainty.step_s.of == NO_NUMBERS) != known, name


def test_links_that_end_at_other_chips_are_not_one_to_each(tmp_path: Path) -> None:
    """Eight MI300X: 7 links of 64 GB/s, of which two use one, as measured (47.7 of 64 GB/s; eight 312.9 of 448)."""
    plan = plan_of(tmp_path, HEAD.replace("h100_node", "mi300x_node").replace("fsdp 8 > tp 8", "fsdp 32 > tp 2") + BODY)
    two, eight = (
        device_group(Mesh.of({"dp": 64 // n, "tp": n}, plan.cluster.cause), plan.cluster, ("tp",)) for n in (2, 8)
    )
    busy = [2 * (1 - 1 / g.size) * 4e9 / collective_s("all_reduce", 4e9, g) / 1e9 for g in (two, eight)]
    assert busy == pytest.approx([47.7, 312.9], rel=0.07)
    assert collective_s("send_recv", 4e9, two) == pytest.approx(collective_s("send_recv", 4e9, eight), rel=1e-6)
    assert bisection_bytes_per_s(plan.cluster, "xgmi3") == pytest.approx(32 * 64e9)
    assert bisection_bytes_per_s(cluster_of("8 x h100_node"), "nvlink4") == 8 * 450e9


@pytest.mark.parametrize(
    "machine",
    [
        "torus ring = mine over wire (wrap = [2, 2])\n",
        "graph ring of mine\npoints a, b as chip in box\nwire a to b over wire\n",
    ],
)
def test_a_torus_and_a_graph_have_no_links_of_a_chip(machine: str, tmp_path: Path) -> None:
    chip = "chip mine(bf16 = 1 TFLOP/s, memory = 8 GiB, memory_bandwidth = 10 GB/s)\n"
    (tmp_path / "m.plan").write_text(
        f"hardware m\n{chip}link wire(bandwidth = 2 GB/s, latency = 1 us, links = 3)\n{machine}"
    )
    ring = "ring(2x2)" if machine.startswith("torus") else "ring"
    head = HEAD.replace("8 x h100_node", ring).replace("model", 'import "m.plan"\nmodel', 1)
    said = [d.message for d in found(tmp_path, head + BODY) if d.code == "E0103"]
    assert len(said) == 1 and said[0].startswith("`links` are of a node")


def test_a_rack_is_one_node(tmp_path: Path) -> None:
    """72 GPUs on NVLink: an axis of 72 stays inside, one of 144 leaves."""
    head = HEAD.replace("batch     64", "batch     144")
    plan = plan_of(tmp_path, head.replace("8 x h100_node", "2 x gb300_nvl72").replace("fsdp 8", "fsdp 18") + BODY)
    assert device_group(plan.mesh, plan.cluster, ("fsdp", "tp")).level == "leaf"
    one = plan_of(tmp_path, head.replace("8 x h100_node", "gb300_nvl72").replace("fsdp 8", "fsdp 9") + BODY)
    assert device_group(one.mesh, one.cluster, ("fsdp", "tp")).level == "nvlink5_rack"


def test_a_network_says_what_calls_cost_and_which_collectives_are_slow(tmp_path: Path) -> None:
    machine = """hardware mine
chip      mine_chip(bf16 = 1 TFLOP/s, memory = 8 GiB, memory_bandwidth = 10 GB/s)
link      mine_link(bandwidth = 2 GB/s, latency = 200 us, call = 50 us, all_reduce_efficiency = 90 %)
node      mine_node = 2 x mine_chip over mine_link
network   mine_net = local 8 at 1 GB/s (call = 5 ms, reduce_scatter_efficiency = 40 %)
"""
    (tmp_path / "mine.plan").write_text(machine)
    head = HEAD.replace("8 x h100_node", "32 x mine_node").replace("model", 'import "mine.plan"\nmodel', 1)
    plan = plan_of(tmp_path, head + BODY)
    link, (level,) = plan.cluster.link, plan.cluster.levels
    assert link.call_s == pytest.approx(50e-6) and link.op_efficiency == pytest.approx({"all_reduce": 0.9})
    assert level.call_s == pytest.approx(5e-3) and level.op_efficiency == pytest.approx({"reduce_scatter": 0.4})


def test_cards_share_their_way_to_the_host_bridge(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD.replace("h100_node", "l40s_node") + BODY)
    link = plan.cluster.link
    (near,) = device_group(plan.mesh, plan.cluster, ("tp",)).levels
    assert near.bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s * link.efficiency / 2)


@pytest.mark.parametrize(
    ("spread", "code"),
    [("9 leaves", "E0103"), ("0 leaves", "E0103"), ("3 racks", "E0108"), ("leaves", "E0102"), ("3", "E0102")],
)
def test_an_allocation_that_cannot_be(tmp_path: Path, spread: str, code: str) -> None:
    findings = found(tmp_path, HEAD.replace("h100_node", f"h100_node over {spread}") + BODY)
    assert [(d.code, d.span.line) for d in findings] == [(code, 4)]


def test_an_allocation_in_blocks_keeps_its_nodes(tmp_path: Path) -> None:
    whole = plan_of(tmp_path, HEAD + BODY).cluster
    blocks = plan_of(tmp_path, HEAD.replace("h100_node", "h100_node over 2 leaves") + BODY).cluster
    assert (blocks.chips, blocks.levels[0].width, whole.levels[0].width) == (whole.chips, 4, 32)


MACHINE = """hardware mine
chip      c({chip}memory = 8 GiB, memory_bandwidth = 10 GB/s)
link      l(bandwidth = 2 GB/s, latency = 200 us{link})
node      mine_node = 2 x c over l
network   net = local 8 at 1 GB/s{level}
"""


def on_machine(folder: Path, chip: str = "bf16 = 1 TFLOP/s, ", link: str = "", level: str = "") -> list[str]:
    """The findings of a plan on a machine with such fields."""
    (folder / "mine.plan").write_text(MACHINE.format(chip=chip, link=link, level=f" ({level})" if level else ""))
    head = HEAD.replace("8 x h100_node", "32 x mine_node").replace("model", 'import "mine.plan"\nmodel', 1)
    return [f"{d.code} {d.message}" for d in found(folder, head + BODY) if d.severity == "error"]


@pytest.mark.parametrize("rates", ["int8 = 1 TFLOP/s, ", "float8 = 1 TFLOP/s, float4 = 1 TFLOP/s, ", ""])
def test_a_chip_has_a_rate_for_what_is_not_narrow(tmp_path: Path, rates: str) -> None:
    """The costs of a chip with rates of narrow dtypes alone were a traceback."""
    assert on_machine(tmp_path, rates) == ["E0103 chip `c` lacks a rate such as bf16"]


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("bf16 = 0.0000000001 GFLOP/s, ", "bf16 must be from 1 to 1e+24 FLOP/s"),
        ("bf16 = 1 TFLOP/s, host_bandwidth = 1e-300 MB/s, ", "host_bandwidth must be from 1 to 1e+18 B/s"),
        ("bf16 = 1 TFLOP/s, launch = 1e20 s, ", "launch must be from 0 to 1e+06 s"),
        ("bf16 = 1 TFLOP/s, memory_efficiency = 1e-300 %, ", "memory_efficiency must be from 1e-06 to 1"),
        ("bf16 = 1 TFLOP/s, runtime = 1e20 TB, ", "runtime must be from 0 to 1e+18 B"),
        ("bf16 = 1 TFLOP/s, failures = 1e-300, ", "failures must be from 1e-09 to 1e+09"),
    ],
)
def test_a_number_that_no_machine_has_is_refused(tmp_path: Path, field: str, says: str) -> None:
    """The report of a rate of 1e-300 had lines of 300 digits; others come out as infinite."""
    assert on_machine(tmp_path, field) == [f"E0103 {says}"]


EDGES = (0.0, 1e-300, 1e-7, 0.5, 1.0, 1.5, 2.0, 1e7, 1e30)
NOUNS: list[tuple[type[Value], dict[str, tuple[str, float | None]], dict[str, str]]] = [
    (Chip, {**CHIP, "bf16": ("compute", None)}, {
        "memory": "memory_bytes", "memory_bandwidth": "memory_bandwidth_bytes_per_s", "launch": "launch_s",
        "runtime": "runtime_bytes", "fragmentation": "runtime_fraction", "communicator": "communicator_bytes",
        "host_bandwidth": "host_bandwidth_bytes_per_s",
    "host_memory": "host_memory_bytes", "die_bandwidth": "die_bandwidth_bytes_per_s",
        "dispatch": "dispatch_s", "step": "step_s", "failures": "failures_per_year"}),
    (Link, LINK, {
        "call": "call_s", "bandwidth": "bandwidth_bytes_per_s", "latency": "latency_s", "half_size": "half_bytes",
        "back_bandwidth": "back_bandwidth_bytes_per_s", "failures": "failures_per_year"}),
    (Level, LEVEL, {"call": "call_s", "latency": "latency_s", "half_size": "half_bytes"}),
]  # fmt: skip
"""Each noun with the fields of its sentence, and where a field of the noun is called otherwise."""


def test_the_nouns_have_the_ranges_of_the_sentences() -> None:
    """Refused by the language, refused in a compiled plan, field by field; and nothing that it takes is refused."""
    asked = 0
    for noun, fields, called in NOUNS:
        hints = get_type_hints(noun, include_extras=True)
        for name, (kind, default) in fields.items():
            if name.endswith("_efficiency") and called.get(name, name) not in hints:
                hint = get_args(hints["narrow_efficiency" if name.startswith("float") else "op_efficiency"])[1]
            else:
                hint = get_args(hints["flops_per_s"])[1] if name == "bf16" else hints[called.get(name, name)]
            (mark,) = get_args(hint)[1:]
            legal = range_of(name, kind)
            for number in [n for n in EDGES if name not in WHOLE or n == int(n)]:
                unsaid = number == 0 and default in (0, None)
                assert mark.holds(number) == legal.holds(number) or unsaid, (name, number)
                asked += 1
    assert asked > 300
