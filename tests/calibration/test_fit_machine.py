"""A machine of known numbers is measured on paper: the fit must find the numbers again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planc.calibration.fit_machine import calibrate, parameters_of, written
from planc.calibration.machine_tables import table_probes
from planc.calibration.probes import MeasuredProbe, MeasuredStep, predicted_s, probes
from planc.cli.commands.calibrate import plan_text, stepped
from planc.driver import load
from planc.ir.hardware import Cluster
from planc.ir.probe import Probe
from planc.sharding.collectives import semantic_collectives
from tests.lab.bench.calibrated import BATCH, LAYOUTS, MODEL
from tests.plans import ROOT, cluster_of, propagated

TEXT = (ROOT / "plans/hardware/cpu_local.plan").read_text()
NOISE = 0.03


def machine(**numbers: float) -> Cluster:
    """Four processes of a computer that is not the one in the hardware file."""
    base = cluster_of("4 x cpu_local")
    chip = replace(
        base.chip,
        flops_per_s={"fp32": 81e9, "bf16": 81e9},
        memory_bandwidth_bytes_per_s=6e9,
        matmul_efficiency=numbers.get("matmul_efficiency", 0.9),
        matmul_depth=numbers.get("matmul_depth", 24.0),
        attention_efficiency=numbers.get("attention_efficiency", 0.2),
        memory_efficiency=0.9,
        launch_s=numbers.get("launch_s", 60e-6),
        step_s=numbers.get("step_s", 12e-3),
        dispatch_s=numbers.get("dispatch_s", 0.0),
        contention=numbers.get("contention", 0.3),
    )
    levels = tuple(
        replace(
            level,
            bandwidth_bytes_per_s=3e9,
            efficiency=0.9,
            latency_s=numbers.get("latency_s", 90e-6),
            call_s=numbers.get("call_s", 1e-3),
            op_efficiency={"reduce_scatter": numbers.get("reduce_scatter", 0.7)},
        )
        for level in base.levels
    )
    return replace(base, chip=chip, levels=levels)


def steps_on(truth: Cluster, paths: Sequence[Path]) -> list[MeasuredStep]:
    """Plans, each with the seconds that the true machine takes."""
    found = []
    for path in paths:
        sharded = propagated(load(path))
        step = MeasuredStep(name=path.stem, sharded=sharded, rows=semantic_collectives(sharded), seconds=1.0)
        found.append(replace(step, seconds=step.predicted_s(truth)))
    return found


def others(folder: Path) -> list[Path]:
    """Layouts that no calibration measures."""
    paths = []
    for name in ("fsdp", "zero1", "tp", "fsdp_tp_sp"):
        mesh, *layout = LAYOUTS[name]
        paths.append(folder / f"other_{name}.plan")
        paths[-1].write_text(plan_text(name, MODEL, BATCH, mesh, layout, "cpu_local", 4))
    return paths


def measured_on(truth: Cluster, seed: int = 0) -> list[MeasuredProbe]:
    noise = random.Random(seed)
    return [
        MeasuredProbe(probe=p, seconds=predicted_s(p, truth) * (1 + NOISE * noise.uniform(-1, 1)))
        for p in probes(4, ("fp32", "bf16"))
    ]


@pytest.mark.parametrize(
    "numbers",
    [
        {"step_s": 1e-3, "matmul_depth": 300.0},
        pytest.param({"dispatch_s": 500e-6, "launch_s": 5e-6}, marks=pytest.mark.long),
        pytest.param({"matmul_efficiency": 0.5, "attention_efficiency": 0.05}, marks=pytest.mark.long),
        pytest.param({"launch_s": 5e-6, "latency_s": 9e-6, "contention": 0.95}, marks=pytest.mark.long),
        pytest.param({"call_s": 6e-3, "reduce_scatter": 0.4}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_known_machine_is_found(numbers: dict[str, float], tmp_path: Path) -> None:
    truth = machine(**numbers)
    known = steps_on(truth, stepped(tmp_path, "cpu_local", 4))
    found = calibrate(cluster_of("4 x cpu_local"), measured_on(truth), known)
    errors = sorted(abs(found.error(m)) for m in found.probes)
    assert errors[len(errors) // 2] < NOISE and errors[-1] < 5 * NOISE
    for step in [*known, *steps_on(truth, others(tmp_path))]:
        assert step.predicted_s(found.cluster) == pytest.approx(step.seconds, rel=0.05), step.name
    reached = found.cluster.chip.flops_per_s["fp32"] * found.cluster.chip.matmul_efficiency
    assert reached == pytest.approx(81e9 * truth.chip.matmul_efficiency, rel=0.05)
    host_s, true_s = (c.chip.launch_s + c.chip.dispatch_s for c in (found.cluster, truth))
    assert host_s == pytest.approx(true_s, rel=0.3)
    network, true = found.cluster.levels[0], truth.levels[0]
    assert network.call_s == pytest.approx(true.call_s, rel=0.3)
    assert network.op_efficiency["reduce_scatter"] == pytest.approx(true.op_efficiency["reduce_scatter"], rel=0.1)


def test_the_fit_starts_far_away(tmp_path: Path) -> None:
    """The declared machine is far from the true one: the test above is none of a fixed point."""
    truth = machine()
    wrong = cluster_of("4 x cpu_local")
    errors = [abs(predicted_s(p, wrong) / predicted_s(p, truth) - 1) for p in probes(4, ("fp32",))]
    assert max(errors) > 1.0 and sorted(errors)[len(errors) // 2] > 0.3


def test_the_file_says_what_was_fitted(tmp_path: Path) -> None:
    found = calibrate(cluster_of("4 x cpu_local"), measured_on(machine()))
    path = tmp_path / "mine.plan"
    path.write_text(written(TEXT, found, ["measured on paper"]))
    plan = tmp_path / "x.plan"
    layout = "model llama_tiny\nbatch 16 x 128 tokens microbatch 2\nmesh dp 4\ncompute fp32\nuse dp over dp\n"
    plan.write_text(f'plan x\nimport "mine.plan"\ncluster 4 x cpu_local\n{layout}')
    read = load(plan).cluster
    assert path.read_text().splitlines()[1] == "# measured on paper"
    for m in found.probes:
        assert predicted_s(m.probe, read) == pytest.approx(predicted_s(m.probe, found.cluster), rel=0.02), m.probe


def test_few_numbers_are_fitted_within_bounds() -> None:
    for name in ("4 x cpu_local", "1 x h100_node"):
        found = parameters_of(cluster_of(name))
        places = [p.place for p in found]
        assert places.count("chip") <= 12 and len(places) - places.count("chip") <= 6
        assert all(p.low <= p.prior <= p.high for p in found)


def test_a_data_sheet_stays() -> None:
    """A chip of counted cores keeps its peaks: only efficiencies and overheads are its own."""
    truth = cluster_of("1 x h100_node")
    truth = replace(truth, chip=replace(truth.chip, matmul_efficiency=0.7, matmul_depth=100.0, matmul_tail=0.0))
    start = cluster_of("1 x h100_node")
    start = replace(start, chip=replace(start.chip, matmul_tail=0.0))
    measured = [MeasuredProbe(probe=p, seconds=predicted_s(p, truth)) for p in probes(8, ("bf16",), large=True)]
    found = calibrate(start, measured)
    assert found.cluster.chip.flops_per_s == truth.chip.flops_per_s
    assert found.cluster.chip.matmul_efficiency == pytest.approx(0.7, rel=0.03)


def test_an_all_to_all_probe_says_its_op() -> None:
    probe = Probe(kind="collective", sizes=(4, 1024), op="all_to_all")
    assert probe.name == "all_to_all over 4" and probe.scale == 1024
    assert probe.to_json() == {"kind": "collective", "sizes": [4, 1024], "dtype": "fp32", "op": "all_to_all"}


def test_a_calibrated_file_has_the_tables_that_were_measured(tmp_path: Path) -> None:
    """Each matmul, attention and collective takes in the written file what it took on the machine. What is said of the
    fit is said of its numbers: a table is what was measured."""
    truth, base = machine(), cluster_of("4 x cpu_local")
    fitted, shaped = probes(4, ["fp32"]), table_probes(["fp32"])
    uneven = ((p, 1.1 if number % 2 else 0.9) for number, p in enumerate(fitted))
    measured = [MeasuredProbe(probe=p, seconds=times * predicted_s(p, truth)) for p, times in uneven]
    tabled = [MeasuredProbe(probe=p, seconds=1.1 * predicted_s(p, truth)) for p in shaped]
    found = calibrate(base, measured, (), tabled)
    (tmp_path / "mine.plan").write_text(written(TEXT, found, ["by a test"]))
    plan = tmp_path / "p.plan"
    plan.write_text(plan_text("p", MODEL, BATCH, "dp 4", ("use ddp over dp",), "cpu_local", 4, "mine.plan"))
    cluster = load(plan).cluster
    assert {t.op for t in cluster.chip.tables} == {"matmul", "attention", "attention_backward", "stream"}
    peak = cluster.chip.flops_per_s["fp32"]
    for m in tabled:
        (table,) = (t for t in cluster.chip.tables if t.op == m.probe.kind)
        rate = table.shares[table.sizes.index(m.probe.sizes)] * peak
        work = m.probe.scale * (2.5 if m.probe.kind == "attention_backward" else 1.0)
        assert rate == pytest.approx(min(peak, work / m.seconds), rel=1e-3)
    for m in (m for m in measured if m.probe.kind == "collective"):
        assert predicted_s(m.probe, cluster) == pytest.approx(m.seconds, rel=1e-3)
        assert abs(found.error(m)) > 0.01
