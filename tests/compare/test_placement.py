"""`planc place`: no order of the axes is better than the one it finds, and its rank files lay the ranks there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from shutil import copy
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planc.cli import main
from planc.compare.placement import _Orders, device_order, mesh_text, place
from planc.compare.rank_files import rank_file
from planc.costing import CostedPlan, device_group
from planc.diag import Diagnostic
from planc.driver import examine, lower, search
from planc.ir.mesh import Mesh
from planc.ir.sharding import Sharded
from tests.graph.test_own_graphs import HARDWARE
from tests.plans import ROOT, written

FIELD = ROOT / "tests" / "graph" / "machines"
PLAN = """plan example
{imported}
model     {model}
batch     {batch} tokens microbatch 1
cluster   {machine}
mesh      {mesh}
compute   fp32
{layout}
recompute blocks
"""
TWO = "use fsdp over fsdp\nuse tp over tp\nuse sp over tp"
THREE = "use hsdp over dp, fsdp\nuse tp over tp\nuse sp over tp"
LONG = "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\nuse cp over cp"
STAGES = f"{TWO}\nuse pp over pp as 1f1b"
EXPERTS = "shard batch over fsdp, ep\nstore params, grads, optimizer over fsdp, ep\nuse ep over ep\nuse tp over tp"
CASES = {
    "h100, tp outside": ("2 x h100_node", "tp 8 > fsdp 2", TWO),
    "a100, tp outside": ("4 x a100_node", "tp 8 > fsdp 4", TWO),
    "b200, two groups of data": ("4 x b200_node", "fsdp 4 > tp 4 > dp 2", THREE),
    "h200, sequences inside": ("4 x h200_node", "tp 4 > fsdp 4 > cp 2", LONG),
    "h200, sequences between": ("4 x h200_node", "fsdp 4 > tp 2 > cp 4", LONG),
    "l40s": ("4 x l40s_node", "tp 4 > fsdp 8", TWO),
    "h800, stages inside": ("4 x h800_node", "fsdp 2 > tp 4 > pp 4", STAGES),
    "h100, stages outside": ("4 x h100_node", "pp 4 > fsdp 2 > tp 4", STAGES),
    "gb200, one rack": ("1 x gb200_nvl72", "tp 8 > fsdp 9", TWO),
    "gb200, racks": ("4 x gb200_nvl72", "tp 8 > dp 4 > fsdp 9", THREE),
    "b300, experts": ("2 x b300_node", "ep 4 > tp 2 > fsdp 2", EXPERTS),
    "h100, experts inside": ("4 x h100_node", "tp 4 > fsdp 2 > ep 4", EXPERTS),
    "v5e": ("1 x tpu_v5e(4x8)", "tp 8 > fsdp 4", TWO),
    "v5e, slices": ("2 x tpu_v5e(4x4)", "tp 4 > fsdp 4 > dp 2", THREE),
    "v5p": ("1 x tpu_v5p(4x4x4)", "fsdp 8 > tp 4 > dp 2", THREE),
    "v4, a line": ("1 x tpu_v4(2x2x4)", "tp 4 > fsdp 4", TWO),
    "7x, slices": ("2 x tpu_7x(4x4x4)", "tp 4 > dp 16 > fsdp 4", THREE),
    "dgx_a100_pcie": ("dgx_a100_pcie", "tp 8 > fsdp 4", TWO),
    "l40s_two_sockets": ("l40s_two_sockets", "tp 4 > fsdp 2", TWO),
    "slingshot_dragonfly": ("slingshot_dragonfly", "tp 8 > fsdp 16 > dp 2", THREE),
    "nvl72_rails": ("nvl72_rails", "tp 8 > fsdp 72", TWO),
    "v5p_line": ("v5p_line", "tp 4 > fsdp 4 > dp 2", THREE),
}


def plan_file(folder: Path, case: str, mesh: str = "") -> Path:
    machine, usual, layout = CASES[case]
    imported = f'import "{machine}.plan"' if " " not in machine else ""
    if imported:
        copy(FIELD / f"{machine}.plan", folder)
    text = PLAN.format(
        imported=imported,
        model="mixtral_8x7b(layers = 4)" if layout == EXPERTS else "llama3_8b(layers = 4)",
        batch="1152 x 2048" if "72" in case or "gb200" in case else "1024 x 2048",
        machine=machine,
        mesh=mesh or usual,
        layout=layout,
    )
    return written(folder, text)


def costed(folder: Path, case: str, mesh: str = "") -> CostedPlan:
    found = examine(plan_file(folder, case, mesh), targets=())
    assert found.costed is not None, found.report.diagnostics
    return found.costed


def by_brute_force(folder: Path, case: str) -> dict[str, float]:
    """Seconds of the step with each order written into the plan, as its report says them."""
    found = {}
    for axes in permutations(CASES[case][1].split(" > ")):
        mesh = " > ".join(axes)
        report = examine(plan_file(folder, case, mesh), targets=()).report
        if report.step is not None:
            found[mesh] = report.step.time_s
    return found


@pytest.mark.parametrize("case", CASES)
def test_no_order_is_better(case: str, tmp_path: Path) -> None:
    found, best = place(costed(tmp_path, case))
    every = by_brute_force(tmp_path, case)
    assert found.best.step_s == pytest.approx(min(every.values()), rel=1e-9)
    assert found.best.step_s == pytest.approx(every[found.best.mesh], rel=1e-9)
    assert found.today.step_s == every[CASES[case][1]] and mesh_text(best) == found.best.mesh


@pytest.mark.parametrize("case", CASES)
def test_a_search_over_the_orders_finds_the_same(case: str, tmp_path: Path) -> None:
    every = by_brute_force(tmp_path, case)
    searched = search(plan_file(tmp_path, case, CASES[case][1].replace(" >", ",")), top=3, memory_gib=1e6)
    shown = {one.label: one.time_s for c in searched for one in (c, *c.same)}  # a row has orders that print the same
    assert len(searched) == 3 or shown.keys() == every.keys()
    assert shown == pytest.approx({label: every[label] for label in shown}, rel=1e-9)
    assert searched[0].time_s == pytest.approx(min(every.values()), rel=1e-9)
    faster = {label for label, step_s in every.items() if step_s < searched[-1].time_s * (1 - 1e-9)}
    assert faster <= shown.keys()


def test_an_order_with_slower_collectives_may_be_faster_where_links_are_free(tmp_path: Path) -> None:
    """On a torus: those of the best order are no faster than in another one, but use other links at once."""
    head = HARDWARE.replace("bandwidth = 50 GB/s", "bandwidth = 6 GB/s")
    written(tmp_path, f"{head}graph pod of h100\nfabric a = torus(shape = 4x8, link = ib, wrap = 1)\n", "acme")
    text = PLAN.format(
        imported='import "acme.plan"', model="llama3_8b", batch="32 x 1024", machine="pod", mesh="{mesh}", layout=THREE
    )
    steps = {}
    for axes in reversed([*permutations(("dp 4", "fsdp 4", "tp 2"))]):
        costed = examine(written(tmp_path, text.format(mesh=" > ".join(axes))), targets=()).costed
        assert costed is not None
        steps[" > ".join(axes)] = costed.step.time_s
    orders = _Orders(costed)
    assert place(costed)[0].best.step_s == pytest.approx(min(steps.values()), rel=1e-9)
    best = next(s for s, mesh in orders.seconds if mesh_text(mesh) == min(steps, key=steps.__getitem__))
    assert any(all(a <= b for a, b in zip(s, best, strict=True)) for s, _ in orders.seconds if s is not best)


def test_orders_that_the_target_refuses_are_left_out(tmp_path: Path) -> None:
    case = "h200, sequences between"
    today = costed(tmp_path, case)
    ask: Any = today.backend

    def refusals(sharded: Sharded) -> list[Any]:
        mesh = sharded.plan.mesh
        refused = [Diagnostic("E0901", "refused", mesh.cause.span)] if mesh.axes[0].name == "cp" else []
        return [*refused, *ask.refusals(sharded)]

    answers = {name: getattr(ask, name) for name in dir(ask) if not name.startswith("_")}
    refusing: Any = SimpleNamespace(**answers | {"refusals": refusals})
    every = by_brute_force(tmp_path, case)
    legal = {mesh: seconds for mesh, seconds in every.items() if not mesh.startswith("cp")}
    found, _ = place(replace(today, backend=refusing))
    assert found.best.step_s == pytest.approx(min(legal.values()), rel=1e-9) and found.refused >= 1
    assert found.best.step_s > min(every.values()) * 1.01, "the best order of all is one that is refused"


def test_what_is_sent_where(tmp_path: Path) -> None:
    today = costed(tmp_path, "l40s")
    found, best = place(today)
    sent = {t.axes: t.sent_bytes for t in found.traffic}
    assert sum(sent.values()) == pytest.approx(sum(r.wire_bytes for r in today.timed.mine))
    tp, fsdp = (next(t for t in found.traffic if t.axes == axis) for axis in ("tp", "fsdp"))
    assert (tp.today.nodes, tp.best.nodes, fsdp.today.nodes, fsdp.best.nodes) == (4, 1, 1, 4)
    assert device_group(best, today.sharded.plan.cluster, ("tp",)).level == tp.best.level != tp.today.level
    for level in found.levels:
        assert level.today_bytes == sum(t.sent_bytes for t in found.traffic if t.today.level == level.level)
        assert level.best_bytes == sum(t.sent_bytes for t in found.traffic if t.best.level == level.level)
    assert found.best.collectives_s == pytest.approx(sum(t.best.seconds for t in found.traffic))
    assert found.today.collectives_s == pytest.approx(sum(r.time_s for r in today.collectives))


def groups(mesh: Mesh, axis: str, order: Iterable[int]) -> set[frozenset[int]]:
    """The devices of every group of an axis, with the ranks of a mesh on the devices of `order`."""
    devices = np.array([*order]).reshape(*mesh.sizes.values())
    lines = np.moveaxis(devices, [*mesh.sizes].index(axis), -1).reshape(-1, mesh.sizes[axis])
    return {frozenset(map(int, line)) for line in lines}


@pytest.mark.parametrize("case", ["h100, tp outside", "gb200, racks", "slingshot_dragonfly", "v5p"])
def test_the_device_order_makes_the_best_orders_groups(case: str, tmp_path: Path) -> None:
    mesh = costed(tmp_path, case).sharded.plan.mesh
    for names in permutations(mesh.sizes):
        best = Mesh.of({name: mesh.sizes[name] for name in names}, mesh.cause)
        order = device_order(mesh, best) or range(mesh.devices)
        for axis in mesh.sizes:
            assert groups(mesh, axis, order) == groups(best, axis, range(mesh.devices))


def loaded(text: str, monkeypatch: pytest.MonkeyPatch, **modules: dict[str, Any]) -> dict[str, Any]:
    """The names of a rank file, read with stand-ins for the framework's modules."""
    for name, members in modules.items():
        module = ModuleType(name.replace("__", "."))
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found: dict[str, Any] = {}
    exec(text, found)
    return found


def test_a_device_mesh_for_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = costed(tmp_path, "h100, tp outside").sharded.plan
    best = Mesh.of({"fsdp": 2, "tp": 8}, plan.mesh.cause)
    order = device_order(plan.mesh, best) or ()
    made = SimpleNamespace(of=lambda kind, ranks, mesh_dim_names: (kind, ranks, mesh_dim_names))
    names = loaded(
        rank_file(plan, best, order, "torchrun"), monkeypatch, torch={"tensor": np.array, "distributed": None},
        torch__distributed={}, torch__distributed__device_mesh={"DeviceMesh": made.of},
    )  # fmt: skip
    kind, ranks, axes = names["mesh"]()
    assert kind == "cuda" and axes == ("tp", "fsdp") and ranks.shape == (8, 2)
    assert {frozenset(map(int, column)) for column in ranks.T} == {frozenset(range(8)), frozenset(range(8, 16))}


def in_jax(text: str, devices: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The array of devices of a rank file for JAX."""
    jax = {"devices": lambda: devices}
    sharding = {"Mesh": lambda array, axes: array}
    return loaded(text, monkeypatch, jax=jax, jax__sharding=sharding)["mesh"]()


def test_devices_for_jax_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = costed(tmp_path, "h100, tp outside").sharded.plan
    best = Mesh.of({"fsdp": 2, "tp": 8}, plan.mesh.cause)
    array = in_jax(rank_file(plan, best, device_order(plan.mesh, best) or (), "jax"), [*range(16)], monkeypatch)
    assert array.shape == (8, 2) and {*array[:, 0]} == {*range(8)}


@pytest.mark.parametrize("case", ["v5e", "v5e, slices", "v5p", "v4, a line", "7x, slices"])
def test_devices_of_a_torus_by_their_coordinates(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chip once; chips along an axis on one dimension are neighbours, and its cores come first."""
    plan = costed(tmp_path, case).sharded.plan
    cluster = plan.cluster
    shape = (*cluster.shape, 1, 1)[:3]
    devices = [
        SimpleNamespace(slice_index=s, coords=list(at), core_on_chip=core)
        for s in range(cluster.count)
        for at in np.ndindex(*shape)
        for core in range(cluster.chip.devices)
    ]
    for names in permutations(plan.mesh.sizes):
        best = Mesh.of({name: plan.mesh.sizes[name] for name in names}, plan.mesh.cause)
        order = device_order(plan.mesh, best) or range(plan.mesh.devices)
        array = in_jax(rank_file(plan, best, order, "jax"), devices, monkeypatch)
        assert array.shape == (*plan.mesh.sizes.values(),)
        assert len({id(d) for d in array.flat}) == len(devices)
        inner = np.moveaxis(array, [*plan.mesh.sizes].index(names[-1]), -1).reshape(-1, plan.mesh.sizes[names[-1]])
        for line in inner:
            assert len({d.slice_index for d in line}) == 1
            assert far(line) <= max(shape), "the innermost axis lies on one or two lines, not all over the slice"


def far(line: Any) -> int:
    """Links between the two chips of a line that are the farthest from each other, without its rings."""
    places = np.array([d.coords for d in line])
    return int((places.max(0) - places.min(0)).sum())


SCONTROL = 'scontrol() { printf "host%d\\n" 0 1 2 3; }\n'
ASKED = '\necho "$SLURM_DISTRIBUTION"; [ -z "$SLURM_HOSTFILE" ] || cat "$SLURM_HOSTFILE"; echo "${LOCAL_OF_RANK[@]}"'


@pytest.mark.parametrize(
    ("mesh", "best", "distribution"),
    [
        ("fsdp 4 > tp 8", "fsdp 4 > tp 8", "block"),
        ("tp 8 > fsdp 4", "fsdp 4 > tp 8", "cyclic"),
        ("a 4 > b 4 > c 2", "b 4 > a 4 > c 2", "plane=2"),
        ("a 2 > b 4 > c 4", "b 4 > c 4 > a 2", "plane=4"),
        ("a 2 > b 2 > c 8", "b 2 > a 2 > c 8", "arbitrary"),
    ],
)
def test_slurm_starts_the_ranks_there(mesh: str, best: str, distribution: str, tmp_path: Path) -> None:
    """The file is run by bash, with a stand-in for scontrol."""
    plan = costed(tmp_path, "h200, sequences inside").sharded.plan
    here, there = (
        Mesh.of({name: int(size) for name, size in map(str.split, m.split(" > "))}, plan.mesh.cause)
        for m in (mesh, best)
    )
    order = device_order(here, there) or tuple(range(32))
    text = rank_file(replace(plan, mesh=here), there, order, "slurm")
    script = SCONTROL + text + ASKED
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    said, *lines = done.stdout.splitlines()
    assert said == distribution
    nodes = [device // 8 for device in order]
    local = [nodes[:rank].count(node) for rank, node in enumerate(nodes)]
    if said == "arbitrary":
        assert lines[:-1] == [f"host{node}" for node in nodes]
    wanted = [device % 8 for device in order]
    assert ([*map(int, lines[-1].split())] or local) == wanted


def test_slurm_knows_the_nodes_of_a_graph(tmp_path: Path) -> None:
    today = costed(tmp_path, "slingshot_dragonfly")
    found, best = place(today)
    text = rank_file(today.sharded.plan, best, found.device_order or range(256), "slurm")
    assert "SLURM_DISTRIBUTION" in text


def test_a_torus_is_not_started_by_slurm(tmp_path: Path) -> None:
    plan = costed(tmp_path, "v5e").sharded.plan
    with pytest.raises(ValueError, match="laid out by JAX"):
        rank_file(plan, plan.mesh, range(32), "slurm")


def test_too_many_axes_are_refused(tmp_path: Path) -> None:
    today = costed(tmp_path, "h100, tp outside")
    mesh = Mesh.of(dict.fromkeys("abcdefgh", 2), today.sharded.plan.mesh.cause)
    sharded = replace(today.sharded, plan=replace(today.sharded.plan, mesh=mesh))
    with pytest.raises(ValueError, match="8 axes that could change places; orders of 7"):
        place(replace(today, sharded=sharded))


CROSSED = """plan crossed
param     n = 2
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      tp 8 > fsdp n   # the network lies between
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
"""


def test_the_best_order_is_written_into_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "crossed.plan"
    file.write_text(CROSSED)
    assert main(["place", str(file), "--fix"]) == 0
    assert "has `mesh fsdp 2 > tp 8` now" in capsys.readouterr().out
    assert file.read_text() == CROSSED.replace("tp 8 > fsdp n", "fsdp n > tp 8")
    program = lower(file, "cuda")
    assert list(program.load().MESH) == ["fsdp", "tp"]
    assert main(["place", str(file), "--fix"]) == 0
    assert "today, the best" in capsys.readouterr().out
    assert main(["place", str(file), "--fix", "-o", str(tmp_path / "ranks.py")]) == 2
