"""Experiments: predicted before they are measured, taken in slices of time, and taken up again after anything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from dataclasses import dataclass, field, replace
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from planc.cli import main
from planc.diag import Diagnostic, PlanError, Span
from planc.driver import cost
from planc.ir.audit import Total
from planc.trainer.measure.coordinator import MeasuringError
from tests.lab.experiments import faults, runner
from tests.lab.experiments.experiment import CPU, Experiment, Facts, Machine, SkippedError, key
from tests.lab.experiments.layouts_ranked import rank_correlation
from tests.lab.experiments.page import page
from tests.lab.experiments.ranks_agree import RanksAgree
from tests.lab.experiments.records import Record, path_of, read
from tests.lab.experiments.runner import MARGIN_S, find_machine, predict, run
from tests.lab.experiments.suite import BEYOND, FITTING, LAYERS, experiments, slice_sizes
from tests.lab.experiments.training_steps import TrainingSteps
from tests.lab.measure import trace
from tests.lab.measure.paired_ratios import median_interval
from tests.plans import ROOT

H100 = Machine(name="NVIDIA H100 80GB HBM3", node="h100_node", devices=1)
FOUR = replace(H100, devices=4)


@dataclass
class Made:
    """An experiment that this test answers."""

    name: str
    title: str = "made here"
    minimum_s: float = 1.0
    text: str = ""
    refuses: bool = False
    answers: list[Facts | Exception] = field(default_factory=lambda: [{"n": 1}])
    asked: list[str] = field(default_factory=list)

    def inputs(self, machine: Machine) -> str:
        return self.text

    def predict(self, machine: Machine, folder: Path) -> Facts:
        self.asked.append("predict")
        if self.refuses:
            raise PlanError([Diagnostic("E0901", "it cannot", Span("a.plan", 1, 1, 1, 1))])
        return {"n": 2}

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        self.asked.append("measure")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def statuses(suite: list[Made], state: Path, seconds: float = 100.0) -> list[str]:
    return [r.status for r in run(suite, CPU, state, seconds)]


def stored(state: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(path_of(state, name).read_text())
    return found


def test_a_prediction_is_written_before_the_experiment_runs(tmp_path: Path) -> None:
    class Looking(Made):
        def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
            before = stored(tmp_path, self.name)
            assert (before["status"], before["predicted"], before["measured"]) == ("predicted", {"n": 2}, None)
            return super().measure(machine, folder, timeout_s)

    assert statuses([Looking("one")], tmp_path) == ["measured"]
    after = stored(tmp_path, "one")
    assert (after["status"], after["predicted"], after["measured"]) == ("measured", {"n": 2}, {"n": 1})


def test_what_is_known_is_not_asked_again(tmp_path: Path) -> None:
    one = Made("one")
    assert statuses([one], tmp_path) == statuses([one], tmp_path) == ["measured"]
    assert one.asked == ["predict", "measure"]


def test_another_question_is_asked_though_one_of_that_name_is_answered(tmp_path: Path) -> None:
    assert statuses([Made("one")], tmp_path) == ["measured"]
    other = Made("one", text="of another plan", answers=[{"n": 7}])
    assert statuses([other], tmp_path) == ["measured"]
    assert stored(tmp_path, "one")["measured"] == {"n": 7}
    assert key(other, CPU, "1") != key(other, CPU, "2") != key(other, replace(CPU, devices=4), "2")


def test_what_does_not_fit_into_the_slice_is_left_and_what_does_is_taken(tmp_path: Path) -> None:
    suite = [Made("long", minimum_s=50.0), Made("short", minimum_s=5.0)]
    assert statuses(suite, tmp_path, 20.0 + MARGIN_S) == ["predicted", "measured"]
    assert statuses(suite, tmp_path, 60.0 + MARGIN_S) == ["measured", "measured"]


def test_what_the_machine_lacks_is_skipped_until_it_is_there(tmp_path: Path) -> None:
    class Lacking(Made):
        def predict(self, machine: Machine, folder: Path) -> Facts:
            raise SkippedError("no torchtitan")

    assert statuses([Lacking("one"), Made("next")], tmp_path) == ["skipped", "measured"]
    assert stored(tmp_path, "one")["why"] == "no torchtitan"
    assert statuses([Made("one")], tmp_path) == ["measured"]


def test_running_out_of_time_twice_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Slow(Made):
        def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
            now[0] += timeout_s
            raise MeasuringError("ended")

    suite: list[Made] = [Slow("slow"), Made("next")]
    assert statuses(suite, tmp_path) == ["postponed", "predicted"]
    assert statuses(suite, tmp_path) == ["failed", "predicted"]
    assert "not done after" in str(stored(tmp_path, "slow")["why"])
    assert statuses(suite, tmp_path) == ["failed", "measured"]


def test_a_refusal_and_a_failure_are_answers(tmp_path: Path) -> None:
    suite = [Made("refused", refuses=True), Made("failed", answers=[MeasuringError("no device")]), Made("fine")]
    suite.insert(2, Made("unforeseen", answers=[ZeroDivisionError("by what?")]))
    assert statuses(suite, tmp_path) == ["refused", "failed", "failed", "measured"]
    assert str(stored(tmp_path, "unforeseen")["why"]).endswith("ZeroDivisionError: by what?\n")
    assert [stored(tmp_path, name)["why"] for name in ("refused", "failed")] == ["E0901: it cannot", "no device"]
    assert "measure" not in suite[0].asked


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "planc.experiment/1"}', "null", "\0"])
def test_a_damaged_record_is_as_none(tmp_path: Path, text: str) -> None:
    assert statuses([Made("one")], tmp_path) == ["measured"]
    path_of(tmp_path, "one").write_text(text)
    assert read(tmp_path, "one", key(Made("one"), CPU, "0")) is None
    assert statuses([Made("one")], tmp_path) == ["measured"]


KILLED = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from tests.lab.experiments.experiment import CPU
from tests.lab.experiments.runner import run
from tests.trainer.test_experiments import Made
class Waiting(Made):
    def measure(self, machine, folder, timeout_s):
        print("measuring", flush=True)
        time.sleep(60)
run([Made("first"), Waiting("second")], CPU, Path(sys.argv[1]), 100)
"""


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None and child.stdout.readline() == "measuring\n"
    child.send_signal(signal.SIGKILL)
    assert child.wait(timeout=30) == -signal.SIGKILL
    suite = [Made("first"), Made("second")]
    assert statuses(suite, tmp_path) == ["measured", "measured"]
    assert [made.asked for made in suite] == [[], ["measure"]]


def test_the_script_takes_packages_from_wheels_and_stops_in_time(tmp_path: Path) -> None:
    """No time: every experiment is predicted, none run, and the page says so."""
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "lark-99-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "")
    state, written = tmp_path / "state", tmp_path / "page.md"
    options = ["--packages", str(tmp_path / "wheels"), "--state", str(state), "--page", str(written)]
    command = [sys.executable, str(ROOT / ".ci" / "accelerator.py"), "--minutes", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stderr
    assert (state / "packages" / "carried.py").exists()
    names = {e.name for e in experiments(find_machine() or CPU)}
    assert {p.stem for p in state.glob("*.json")} == names
    text = written.read_text()
    assert text.count("not measured yet") + text.count("skipped") == len(names)


def test_every_package_to_carry_is_listed() -> None:
    """Those that planc needs and that neither torch nor JAX brings along."""

    def closure(names: list[str]) -> set[str]:
        found: set[str] = set()
        while names:
            name = names.pop().lower().replace("-", "_")
            if name not in found:
                found.add(name)
                wanted = [Requirement(r) for r in requires(name) or []]
                names += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
        return found

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own = [*project["dependencies"], *extras["cuda"], *extras["xla"], *extras["float8"]]
    needed = closure([Requirement(r).name for r in own]) - closure(["torch", "jax"])
    lines = (ROOT / ".ci" / "wheels.txt").read_text().splitlines()
    listed = {line.replace("-", "_") for line in lines if not line.startswith("#")}
    assert {"pydantic_core", "lark"} <= needed <= listed
    assert listed - needed == {"typing_extensions"}  # torch brings one, perhaps too old for pydantic


# The suite.


@pytest.mark.parametrize("machine", [CPU, H100, replace(H100, devices=8)], ids=["cpu", "h100", "h100x8"])
def test_every_experiment_has_a_prediction_and_a_program(machine: Machine) -> None:
    suite = experiments(machine)
    assert len({e.name for e in suite}) == len(suite) >= 14
    records = [predict(e, machine) for e in suite]
    absent = {} if find_spec("torchtitan") else {"torchtitan": "torchtitan is not installed"}
    assert {r.name: r.why for r in records if r.status != "predicted"} == absent
    for experiment, record in zip(suite, records, strict=True):
        if isinstance(experiment, TrainingSteps):
            assert record.predicted is not None and record.predicted["step_s"] > 0
            fits = experiment.name != "too_large"
            assert record.predicted["fits"] is fits, experiment.name
            if machine.is_accelerator and fits:
                assert record.predicted["device_gib"] <= FITTING * record.predicted["capacity_gib"], experiment.name
            assert len(record.predicted["program_sha256"]) == 64


def test_the_two_suites_ask_the_same_questions() -> None:
    of_cpu, of_one, of_four = ({e.name for e in experiments(machine)} for machine in (CPU, H100, FOUR))
    only_there = {"large", "too_large", "small_eager", "float8_rowwise", "float8_tensorwise"}
    assert of_one - of_cpu == {*only_there, "ranks_nccl"} and of_cpu - of_one == {"overlap", "ranked"}
    assert of_four == of_cpu | only_there - {"too_large"}  # four hold all 32 layers


def test_the_slices_are_the_last_that_fits_and_the_first_well_beyond(tmp_path: Path) -> None:
    fitting, beyond = slice_sizes(H100)
    large = next(e for e in experiments(H100) if e.name == "large")
    assert isinstance(large, TrainingSteps) and LAYERS[0] < fitting < beyond <= LAYERS[-1]

    def share(layers: int) -> float:
        path = tmp_path / f"{layers}.plan"
        path.write_text(replace(large, model=f"llama3_8b(layers = {layers})").plan(H100))
        memory = cost(path, target="cuda").memory
        assert memory is not None
        return memory.per_device_gib.total / memory.capacity_gib

    assert share(fitting) <= FITTING < share(fitting + 1)
    assert share(beyond - 1) <= BEYOND < share(beyond)


@pytest.mark.parametrize(("name", "node"), [("NVIDIA H100 80GB HBM3", "h100_node"), ("NVIDIA GB200", "gb200_nvl72")])
def test_a_device_is_known_by_its_name(name: str, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "cuda_devices", lambda: (name, 2))
    assert find_machine() == Machine(name=name, node=node, devices=2)
    monkeypatch.setattr(runner, "cuda_devices", lambda: ("Some Card", 1))
    assert find_machine() is None and main(["bench", "accelerator"]) == 2
    monkeypatch.setattr(runner, "cuda_devices", lambda: ("", 0))
    assert find_machine() == CPU


def test_a_plan_that_ends_out_of_memory_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (large,) = (e for e in experiments(H100) if e.name == "large")

    def failing(words: str) -> None:
        def measure(*_: object, **__: object) -> None:
            raise MeasuringError(words)

        monkeypatch.setattr("tests.lab.experiments.training_steps.measure", measure)

    failing("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert large.measure(H100, tmp_path, 10.0) == {"fits": False}
    failing("RuntimeError: no NCCL")
    with pytest.raises(MeasuringError, match="no NCCL"):
        large.measure(H100, tmp_path, 10.0)


# The page.


def test_the_page_has_every_record_with_its_errors(tmp_path: Path) -> None:
    suite = {e.name: e for e in experiments(H100)}
    steps = {
        "step_s": 0.5,
        "mfu": 0.5,
        "tokens_per_s": 65536.0,
        "peak_gib": 70.0,
        "reserved_gib": 75.5,
        "features": ["flash"],
        "fits": True,
    }

    def answered(name: str, measured: Facts) -> Record:
        record = predict(suite[name], H100)
        return record.model_copy(update={"status": "measured", "measured": measured})

    small = answered("small", steps)
    assert small.predicted is not None
    probes = predict(suite["curves"], H100).predicted
    assert probes is not None
    curves = {"probes": [{**p, "s": 2 * p["s"]} for p in probes["probes"]], "fitted": {"chip launch": 3e-6}}
    agree = {"max_abs": 1e-3, "ok": True, "budget": 2e-2}
    text = page(
        H100,
        [
            small,
            answered("too_large", {"fits": True}),
            answered("curves", curves),
            answered("agreement", agree),
            answered("saves", {"asynchronous_s": 0.01, "synchronous_s": 0.2, "step_s": 0.5}),
            predict(suite["long"], H100),
            predict(suite["muon"], H100).model_copy(update={"status": "failed", "why": "no `muon` | here"}),
        ],
    )
    error = small.predicted["step_s"] / 0.5 - 1
    assert f"Median error of a step: {abs(error):.1%}" in text and f"{error:+.1%}" in text
    assert "**planc was wrong**: it ran" in text
    assert "10 ms in the background, 200 ms otherwise" in text
    assert "1.0e-03 nats apart at most, inside the budget" in text
    assert text.count("-50%") == len(probes["probes"]) and "chip launch" in text
    assert "| 70.00 (75.50) |" in text
    assert "not measured yet" in text and r"no \`muon\` \| here" in text


def test_the_page_says_what_held_and_what_did_not() -> None:
    """Each of the other experiments twice: as predicted, and otherwise."""
    record = predict(Made("any"), CPU).model_copy(update={"status": "measured"})

    def said(predicted: Facts, measured: Facts) -> str:
        made = record.model_copy(update={"predicted": predicted, "measured": measured})
        return page(CPU, [made]).partition("## Others")[2]

    ratio = {"ratio": 1.01, "ratio_lower": 0.99, "ratio_upper": 1.04, "pairs": 9, "emitted_s": 0.1, "by_hand_s": 0.1}
    bars = {"median_bar": 1.02, "upper_bar": 1.05}
    assert "held" in said(bars, {**ratio, "ok": True}) and "**not held**" in said(bars, {**ratio, "ok": False})
    plan = {"plan": "one", "dtype": "fp32", "loss_apart": 1e-7, "gradient": 1e-5, "calls_as_predicted": 8}
    budget = {"plans": [{"plan": "one", "budget": 1e-4, "gradient_budget": 1e-3}]}
    as_predicted, otherwise = (
        {"calls_otherwise": [], "ok": True},
        {"calls_otherwise": ["rank 0: one more"], "ok": False},
    )
    fine = said(budget, {"agree": True, "plans": [{**plan, **as_predicted}]})
    assert "1e-07 nats apart (at most 1e-04)" in fine.replace("1.0e-07", "1e-07")
    assert "8 collectives as predicted: inside" in fine
    wrong = said(budget, {"agree": False, "plans": [{**plan, **otherwise}]})
    assert "8 collectives as predicted, **rank 0: one more**: **outside**" in wrong
    step = {"step_s": 1.0, "communication_s": 0.2, "exposed_s": 0.1}
    assert "not seen without NCCL" in said(step, {**step, "calls": None, "calls_as_predicted": None})
    calls = {"all_gather": {"count": 3, "bytes": 4096}}
    assert "**not as predicted**: all_gather 3 calls of 4,096 bytes" in said(
        step, {**step, "calls": calls, "calls_as_predicted": False}
    )
    layouts = {"layouts": [{"layout": "dp 2", "step_s": 0.5}]}
    ranked = said(layouts, {**layouts, "rank_correlation": 0.9, "first_loses": 0.01})
    assert "rank correlation 0.90, the first one loses 1.0%. dp 2: 500.0 ms predicted, 500.0 measured" in ranked
    killed = {"killed_in_a_save": True, "kills": 2, "lost_steps": 0, "processes_left": 0}
    assert "killed in a save (2 tries), losses equal to the bit" in said({}, {**killed, "bit_equal": True})
    assert "**not equal**" in said({}, {**killed, "bit_equal": False})
    hang = {"ended_s": 17.0, "names_rank": True, "processes_left": 0}
    ended = said({"ends_within_s": 45.0}, {**hang, "ended": True})
    assert "ended after 17 s (at most 45), the message names the rank" in ended
    assert "**did not end**" in said({"ends_within_s": 45.0}, {**hang, "ended": False})
    rates = {"tokens_per_s": {"bytes": 2e6}, "share_of_step": {"bytes": 0.02}}
    assert "2,000,000 a second from bytes (2.0% of a step)" in said({"needed_tokens_per_s": 4e4}, rates)


# Their parts.


def test_communication_that_compute_covers_is_not_exposed() -> None:
    def event(name: str, start: float, end: float, cat: str, **about: object) -> dict[str, object]:
        return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "args": about}

    gather = {"Collective name": "_allgather_base", "In msg nelems": 8, "Out msg nelems": 32, "dtype": "BFloat16"}
    events = [
        event("ncclDevKernel_AllGather_RING_LL", 0, 10, "kernel", **gather, **{"Group size": 4}),
        event("ncclDevKernel_AllGather_RING_LL", 20, 30, "kernel", **gather, **{"Group size": 4}),
        event("ncclDevKernel_AllGather_RING_LL", 50, 51, "kernel", **gather, **{"Group size": 1}),
        event("gemm", 4, 24, "kernel"),
        event("aten::mm", 0, 100, "cpu_op"),
    ]
    moving, busy = trace.communication(events), trace.computing(events)
    assert trace.uncovered(moving, busy) == [(0, 4), (24, 30), (50, 51)]
    assert trace.length_s(moving) == pytest.approx(21e-6)
    assert trace.nccl_calls(events) == {"all_gather": Total(2, 2 * 32 * 2)}
    on_host = [event("gloo:all_reduce", 0, 10, "user_annotation"), event("aten::mm", 2, 5, "cpu_op")]
    assert trace.uncovered(trace.communication(on_host), trace.computing(on_host)) == [(0, 2), (5, 10)]


def test_predicted_calls_are_those_of_the_plans_collectives(tmp_path: Path) -> None:
    (overlap,) = (e for e in experiments(FOUR) if e.name == "overlap")
    predicted = overlap.predict(FOUR, tmp_path)
    assert [e.ranks for e in experiments(FOUR) if isinstance(e, RanksAgree)] == [4] * 3
    layers = 16
    assert predicted["calls"]["reduce_scatter"]["count"] == 4 * (layers + 2)  # a microbatch: embedding, blocks, the end
    assert predicted["exposed_s"] <= predicted["communication_s"] < predicted["step_s"]


def test_the_message_of_an_ended_run_begins_with_its_diagnostic() -> None:
    output = (
        " step 2\nerror[E1026]: no rank has made progress for 15 s; rank 1 has been silent\n  why: planc explain E1026"
    )
    assert faults.diagnostic(output, "E1026").startswith("[E1026]: no rank") and "rank 1" in faults.diagnostic(
        output, "E1026"
    )
    assert faults.diagnostic(output, "E1012") == ""


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        ([1, 2, 3, 4], [2, 3, 9, 10], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 2], [1, 3, 2], 0.866),
        ([1, 1], [1, 2], None),
    ],
)
def test_layouts_are_correlated_by_rank(predicted: list[float], measured: list[float], expected: float | None) -> None:
    assert rank_correlation(predicted, measured) == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_a_ratio_comes_with_its_interval() -> None:
    median, lower, upper = median_interval([1.0, 1.01, 0.99, 1.2, 1.0, 1.02, 0.98, 1.0])
    assert median == 1.0 and 0.98 <= lower < 1.0 < upper <= 1.2
    assert median_interval([1.03] * 20) == (1.03, 1.03, 1.03)


def test_jax_says_the_peak_of_its_fullest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")

    class Device:
        def __init__(self, **stats: int) -> None:
            self.memory_stats = lambda: stats

    from planc.backends.xla.runtime.shards import peak_memory_gib

    devices = [Device(peak_bytes_in_use=2**30), Device(peak_bytes_in_use=3 * 2**30, peak_pool_bytes=2**32), Device()]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert (peak_memory_gib(), peak_memory_gib("peak_pool_bytes")) == (3.0, 4.0)


@pytest.mark.parametrize(("said", "limits"), [("[E1026] no progress", [15.0, 30.0, 60.0]), ("[E1011] no plan", [15.0])])
def test_a_limit_that_a_busy_machine_misses_is_doubled(
    said: str, limits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs end before their second step; the third one would take it."""
    asked: list[float] = []
    runs: Any = SimpleNamespace(until=lambda *_: len(asked) == 3, end=lambda: said, steps=lambda: 0)
    monkeypatch.setattr(faults, "_preset", lambda *words: asked.append(words[3]))
    monkeypatch.setattr(faults, "RunningTraining", lambda *_: runs)
    hang = next(e for e in experiments(CPU) if isinstance(e, faults.StoppedRank))
    if len(limits) == 3:
        assert hang._begun(CPU, tmp_path, time.monotonic() + 100) == (runs, 60.0)
    else:
        with pytest.raises(MeasuringError, match="no second step"):
            hang._begun(CPU, tmp_path, time.monotonic() + 100)
    assert asked == limits


@pytest.mark.launch
@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["ranks_pp", "killed", "data", *(pytest.param(n, marks=pytest.mark.slow) for n in ("by_hand", "overlap", "hang"))],
)
def test_an_experiment_of_several_ranks_on_this_computer(name: str, tmp_path: Path) -> None:
    (experiment,) = (e for e in experiments(CPU) if e.name == name)
    (record,) = run([experiment], CPU, tmp_path, 600)
    assert (record.status, record.why) == ("measured", "")
    m = record.measured or {}
    match name:
        case "by_hand":
            assert m["loss_apart"] <= 1e-6 and m["pairs"] == 10 and m["ratio_lower"] <= m["ratio"] <= m["ratio_upper"]
        case "ranks_pp":
            assert m["agree"] and [p["dtype"] for p in m["plans"]] == ["fp32", "bf16"]
            assert all(p["calls_as_predicted"] for p in m["plans"])
        case "overlap":
            assert 0 < m["exposed_s"] <= m["communication_s"] and m["calls"] is None
        case "killed":
            assert (
                m["bit_equal"] and (m["lost_steps"], m["processes_left"]) == (0, 0) and m["kept_step"] >= m["told_step"]
            )
        case "hang":
            assert m["ended"] and m["names_rank"] and m["code"] == "E1026" and not m["processes_left"]
        case "data":
            assert set(m["tokens_per_s"]) == {"bytes", "tokens"} and all(m["tokens_per_s"].values())
    assert "## Others" in page(CPU, [record])


@pytest.mark.launch
@pytest.mark.slow
def test_steps_and_agreement_on_this_computer(tmp_path: Path) -> None:
    """Three experiments as they are, from the prediction to the page."""
    suite: list[Experiment] = [e for e in experiments(CPU) if e.name in ("small", "agreement", "saves")]
    records = run(suite, CPU, tmp_path, 600)
    assert [(r.name, r.status, r.why) for r in records] == [(e.name, "measured", "") for e in suite]
    small, agreement, saves = (r.measured for r in records)
    assert small is not None and agreement is not None and saves is not None
    assert small["step_s"] > 0 and len(small["steps_s"]) >= 3 and small["peak_gib"] > 0.1
    assert all(s > 0 for s in saves.values()) and len(saves) == 4
    assert agreement["ok"] and 0 < agreement["max_abs"] <= agreement["budget"]
    assert "Median error of a step" in page(CPU, records)
