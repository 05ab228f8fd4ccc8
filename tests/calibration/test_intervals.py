"""80 % intervals: coverage of left-out runs, classes and their fallbacks, and where they are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import get_args

import pytest

import planc
from planc.calibration.bundled import bundled
from planc.calibration.intervals import NO_NUMBERS, STRANGERS, Quantity, Subject, order_margin, ratios, step_ratios
from planc.cli import main
from planc.frameworks import OWN
from planc.searching.branch_and_bound import equivalent, search
from planc.searching.space import Space
from tests.lab.published.accuracy import left_out
from tests.lab.published.plans import unusable
from tests.lab.published.predict import Predicted, prepare, timed
from tests.lab.published.residuals import (
    MOST_OF_ONE,
    Residual,
    _akin,
    bundled_residuals,
    quantile,
    spread,
)
from tests.lab.published.residuals import order_margin as measured_apart
from tests.lab.published.rows import Row, training_rows
from tests.plans import ROOT
from tests.search.test_search import MOST, SPACES

LARGE = 15
"""Runs of a class whose coverage must be within the limits alone; of fewer, one more or less is over 6 points."""


@pytest.mark.parametrize("quantity", ["step", "memory"])
def test_intervals_hold_four_of_five_left_out_runs(quantity: str) -> None:
    """Each run by an interval that was made without it: 75 to 85 % of all, and of each larger class."""
    found = bundled_residuals(quantity)  # type: ignore[arg-type]
    coverage = {c.group: c for c in spread(found, quantity).coverage}  # type: ignore[arg-type]
    assert coverage["all"].runs == len(found) == len({r.run for r in found})
    large = [c for c in coverage.values() if c.runs >= LARGE]
    assert len(large) >= (9 if quantity == "step" else 3)
    assert [c.group for c in large if not 0.75 <= c.without_the_run <= 0.85] == []


def test_intervals_hold_for_publishers_never_seen() -> None:
    """All runs of a publisher by intervals that were made without any of them."""
    coverage = spread(bundled_residuals("step"), "step").coverage[0]
    assert coverage.group == "all" and 0.75 <= coverage.without_its_publisher <= 0.90


def test_a_stranger_is_judged_without_its_publisher_framework_and_chip() -> None:
    """Steps and peaks of strangers are held as often as said; one like the others in any of the three takes no part."""
    steps, peaks = (spread(bundled_residuals(q), q).coverage[0].of_a_stranger for q in get_args(Quantity))
    assert 0.75 <= steps <= 0.85 and 0.75 <= peaks <= 0.91  # 38 of 42 peaks
    one = run("a", 1.0)
    others = [
        replace(run("b", 1.0, "nemo", "b200"), publisher="another"),
        replace(run("c", 1.0, "nemo"), publisher="another"),
        replace(run("d", 1.0, chip="b200"), publisher="another"),
        run("e", 1.0, "nemo", "b200"),
    ]
    assert [o.run for o in others if not _akin(one, o)] == ["b"]


def test_the_residuals_are_those_of_the_predictions_today() -> None:
    """Every 20th run predicted again, without its publisher."""
    known = {r.run: exp(r.log_ratio) for r in bundled_residuals("step")}
    rows = [row for row in training_rows() if not unusable(row)]
    assert set(known) == {row.id for row in rows}
    for row in rows[::20]:
        found = timed(prepare(row), left_out(row.publisher))
        assert found.measured_s / found.predicted_s == pytest.approx(known[row.id], abs=1e-4), f"{row.id}: make docs"


@pytest.mark.parametrize("quantity", ["step", "memory"])
def test_the_classes_are_those_of_the_residuals(quantity: str) -> None:
    known = {c["of"]: c for c in bundled("intervals.json")[quantity]}
    for c in spread(bundled_residuals(quantity), quantity).classes:  # type: ignore[arg-type]
        assert (c.runs, c.low, c.high) == pytest.approx(
            tuple(known[c.of][k] for k in ("runs", "low", "high")), abs=6e-4
        )


def run(name: str, ratio: float, framework: str = "megatron", chip: str = "h100") -> Residual:
    return Residual(name, Subject(chip, "dense", framework), "someone", log(ratio))


def test_a_framework_that_published_most_does_not_speak_for_the_others() -> None:
    """40 runs of one framework and 10 of others: the others' errors reach into the limits of the wider class."""
    alone = [run(f"a{i}", 1 + i / 1000) for i in range(40)]
    others = [run(f"{name}{i}", 1.4 + i / 100, name) for name in ("torch", "fms", "nemo") for i in range(MOST_OF_ONE)]
    classes = {c.of: c for c in spread([*alone, *others], "step").classes}
    assert classes["dense, h100, megatron"].high < 1.05 and classes["dense, h100"].high > 1.35
    assert "dense, h100, torch" not in classes


def test_a_quantile_of_few_runs_lies_further_out() -> None:
    """The k-th of n is where the next one is below with probability k / (n + 1)."""
    values = [(float(i), 1.0) for i in range(1, 10)]
    assert quantile(values, 0.9) == pytest.approx(9.0) and quantile(values, 0.1) == pytest.approx(1.0)
    assert quantile(values, 0.5) == pytest.approx(5.0)
    assert quantile([(1.0, 1.0), (2.0, 1e-6)], 0.5) == pytest.approx(1.0, abs=0.01)


def test_a_plan_has_the_narrowest_class_with_enough_runs() -> None:
    assert ratios(Subject("a100", "dense", "megatron"), "step").of == "dense, a100, megatron"
    assert ratios(Subject("h100", "dense", "torchtitan"), "step").of == "dense, h100"
    assert ratios(Subject("v4", "dense", "maxtext"), "step").of == "dense, TPUs"
    assert ratios(Subject("h100", "dense", "megatron"), "memory").of == "dense, megatron"


def test_a_plan_unlike_the_runs_of_its_class_has_the_class_of_strangers() -> None:
    """A framework that none of its chip's runs has; a chip without runs; planc's own programs."""
    for chip, framework in (("h100", "deepspeed"), ("unheard_of", "megatron"), ("h100", OWN)):
        assert ratios(Subject(chip, "dense", framework), "step").of == STRANGERS
    assert ratios(Subject("b300", "dense", "megatron"), "memory").of == STRANGERS


def test_a_chip_without_measured_numbers_has_a_class_of_its_own(tmp_path: Path) -> None:
    """The L40S of the catalog has the language's efficiencies, an MI300X its maker's best matmul; a calibrated chip has
    overheads too."""
    text = (ROOT / "plans/tiny.plan").read_text()
    for name, node in (("a", "l40s_node"), ("b", "h100_node"), ("c", "mi300x_node")):
        changed = text.replace("4 x cpu_local", f"1 x {node}(4)")
        assert changed != text
        (tmp_path / f"{name}.plan").write_text(changed)
    assert step_ratios(planc.load(tmp_path / "a.plan")).of == NO_NUMBERS
    unmeasured = planc.load(tmp_path / "c.plan")
    assert step_ratios(unmeasured).of == NO_NUMBERS
    chip = replace(unmeasured.cluster.chip, step_s=0.01)
    calibrated = replace(unmeasured, cluster=replace(unmeasured.cluster, chip=chip))
    assert step_ratios(calibrated).of == STRANGERS
    assert step_ratios(planc.load(tmp_path / "b.plan")).of == STRANGERS


def test_a_report_says_its_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "plans/llama3_70b_v5p.plan")
    report = planc.check(file)
    found, step, memory = report.uncertainty, report.step, report.memory
    assert found is not None and step is not None and memory is not None and found.share == 0.8
    assert found.step_s.low < step.time_s < found.step_s.high and found.step_s.of == STRANGERS
    around = ratios(Subject("v5p", "dense", "planc"), "memory")
    assert found.allocated_gib.low == found.allocated_gib.estimate == memory.allocated_gib
    assert found.allocated_gib.high == pytest.approx(memory.allocated_gib * around.high)
    assert main(["check", file]) == 0
    said = capsys.readouterr().out
    assert "80% interval" in said and f"published runs ({STRANGERS}), none with planc" in said
    main(["cost", file, "--format", "json"])
    known = json.loads(capsys.readouterr().out)["uncertainty"]
    assert known["step_s"]["high"] == pytest.approx(found.step_s.high)


def of_layout(name: str, predicted_s: float, measured_s: float) -> Predicted:
    facts = {
        "id": name,
        "source": "a/b c",
        "hardware": {"chip": "A100-80", "n_devices": 8},
        "model": {"layers": 2},
        "parallel": {"tp": name},
        "batch": {"seq": 128, "global_batch_seqs": 8},
    }
    return Predicted(Row(facts), measured_s, predicted_s, 0.0)


def test_layouts_are_told_apart_by_how_far_the_ratios_of_pairs_were_off() -> None:
    """Ratios that were off by 10 % in each pair: only beyond that is the order sure."""
    found = [of_layout("1", 1.0, 1.0), of_layout("2", 1.05, 1.05 * 1.1)]
    assert measured_apart(found) == pytest.approx(0.1)
    assert measured_apart([*found, of_layout("3", 3.0, 1.0)]) == pytest.approx(0.1)  # no near pair
    assert 0.02 < order_margin() < 0.25


def test_a_search_counts_the_layouts_that_cannot_be_told_apart(tmp_path: Path) -> None:
    """Those of the first five that are nearer to the first than `order_margin`; each has its interval."""
    path = tmp_path / "space.plan"
    path.write_text(SPACES["fsdp_tp"])
    found = search(Space(path, None, MOST), top=8)
    near = [c.s_per_sequence < found[0].s_per_sequence * (1 + order_margin()) for c in found[:5]]
    assert found.equivalent == sum(near) == equivalent(found.best) and all(near[: found.equivalent])
    assert all(c.interval and c.interval.low < c.time_s < c.interval.high for c in (*found, *found.pareto))
    assert found.to_json()["best"][0]["interval_s"] == [found[0].interval.low, found[0].interval.high]
    assert equivalent(()) == 0
