"""Promises that planc keeps for every plan: an answer in time, one meaning, one number, programs that parse."""

from __future__ import annotations

import io
import json
import math
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from planc.checks import rules
from planc.cli import main
from planc.cli.views.report_text import print_report
from planc.costing.machine.axis_orders import moving_axes
from planc.diag.errors import PlanError
from planc.diag.text import render
from planc.driver import Examined, examine, lower, search
from planc.ir.plan import Plan
from planc.ir.program import Program
from planc.ir.program_shape import foreign
from planc.ir.read_plan import read_plan
from planc.ir.report import Report, StageMemory
from planc.ir.target import NO_TARGET, TARGETS, Target
from planc.language.build import build_file
from planc.lowering import RUNTIMES, lower_sharded
from planc.picture.units import gib
from planc.syntax import parse_text
from planc.syntax.fmt import format_text
from tests.random_plans.pieces import Drawn
from tests.random_plans.programs import defined_twice, unknown_axes

ANSWER_S = 5.0
"""CPU seconds that one answer may take."""
HANG_S = 60.0
"""CPU seconds after which an answer is waited for no longer."""
SEARCHED_AXES = 3
"""Axes of several ranks whose orders are searched, at most."""


class HangError(Exception):
    """No answer came in HANG_S."""


@dataclass
class Outcome:
    """The answers to a plan: targets that lower it, codes of its own errors, and codes of each target's refusals."""

    lowered: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """The program for each runtime that lowers the plan."""
    slowest_s: float = 0.0

    @property
    def kind(self) -> str:
        return "lowered" if self.lowered else "refused"

    def timed(self, since: float) -> None:
        """Remember an answer that began at `since`, and that it came in time."""
        spent = time.process_time() - since
        self.slowest_s = max(self.slowest_s, spent)
        assert spent <= ANSWER_S, f"an answer took {spent:.1f} s of CPU"


@contextmanager
def bounded() -> Iterator[None]:
    """Raise HangError after HANG_S of CPU in user mode. SIGPROF, for all CPU time, is taken by JAX's libraries where
    they are loaded."""

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise HangError(f"no answer in {HANG_S:.0f} s of CPU")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def write(drawn: Drawn, folder: Path) -> Path:
    """The plan's file, with those that it reads beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in drawn.files.items():
        (folder / name).write_text(text)
    path = folder / f"{drawn.name}.plan"
    path.write_text(drawn.text)
    return path


def prove(drawn: Drawn, folder: Path, *, thorough: bool = True) -> Outcome:
    """Check every promise on a plan; those that cost most only if `thorough`.

    Raises AssertionError, or whatever planc raised, when one is broken.
    """
    with bounded():
        path, outcome = write(drawn, folder), Outcome()
        since = time.process_time()
        examined = examine(path)
        outcome.timed(since)
        report = examined.report
        outcome.errors = sorted({d.code for d in report.diagnostics if d.severity == "error"})
        consistent(examined)
        if report.step is not None:
            laws(report, examined.plan)
        formatted = format_text(drawn.text)
        assert format_text(formatted) == formatted, "formatting twice is not formatting once"
        assert _words(formatted) == _words(drawn.text), "the formatted plan says another thing"
        if thorough and examined.plan is not None:
            one_meaning(path, drawn, formatted)
            said_in_full(path, report)
        for target in TARGETS:
            answer(path, target, examined, outcome, thorough=thorough)
        if thorough and report.step is not None and 1 < len(moving_axes(examined.plan.mesh)) <= SEARCHED_AXES:
            any_order(path, drawn)
    return outcome


def any_order(path: Path, drawn: Drawn) -> None:
    """A search over all orders of the mesh returns one that is no slower than the written one, and costs it as `check`
    does. Without a target: bounds hold for any correct program."""
    own = examine(path, target=NO_TARGET, targets=()).report
    assert own.step and own.memory
    path = path.with_name("any_order.plan")
    path.write_text(re.sub(r"(?m)^mesh .*$", lambda found: found[0].replace(" > ", ", "), drawn.text))
    assert "E0115" in {d.code for d in examine(path).report.diagnostics}, "no finding says that an order is open"
    found = search(path, target=NO_TARGET, top=1)
    if own.memory.per_device_gib.total > found.room_gib:
        return
    if "W0907" in {d.code for d in own.diagnostics}:  # a search keeps to what the framework runs, `check` warns
        assert not found.best and {each.code for each in found.refusals} == {"W0907"}
        return
    assert found.best, "no order, although the written one fits"
    best = found.best[0]
    assert best.time_s <= own.step.time_s * (1 + 1e-9), "the best order is slower than the written one"
    path.write_text(best.text)
    again = examine(path, target=NO_TARGET, targets=()).report.step
    assert again is not None and math.isclose(again.time_s, best.time_s, rel_tol=1e-9), "two costs of the best order"


def _words(text: str) -> list[list[str]]:
    """The words of each sentence, without their places."""
    return [[word.text for word in s.node.all_words()] for s in parse_text(text, "x.plan").sentences]


def one_meaning(path: Path, drawn: Drawn, formatted: str) -> None:
    """Formatting and compiling change nothing of what a plan means."""
    plan = build_file(path).plan
    path.write_text(formatted)
    again = build_file(path).plan
    path.write_text(drawn.text)
    assert again is not None and again.sha256 == plan.sha256, "the formatted plan means another thing"
    text = plan.canonical()
    assert read_plan(json.loads(text)).canonical() == text, "the compiled plan is read as another one"


def said_in_full(path: Path, report: Report) -> None:
    """A plan in full, with its shorthands, numbers, imports and defaults written out, means the same and has the
    figures of the plan, without the hardware files and layouts beside it."""
    with redirect_stdout(io.StringIO()) as shown, redirect_stderr(io.StringIO()):
        main(["expand", str(path)])
    other = path.with_name("said_in_full") / "x.plan"
    other.parent.mkdir(exist_ok=True)
    other.write_text(shown.getvalue())
    for file in path.parent.glob("*.[jc]s*"):  # a config, an op graph, a schedule: no sentence holds them
        (other.parent / file.name).write_bytes(file.read_bytes())
    verbs = {s.verb for s in parse_text(shown.getvalue(), "x.plan").sentences}
    assert not verbs & {"use", "let", "import"}, "a shorthand is left"
    again = examine(other, targets=()).report
    assert again.plan_sha256 == report.plan_sha256, "written out, it is another plan"
    assert (again.step, again.memory) == (report.step, report.memory), "its defaults, written out, cost another thing"
    assert again.defaults == (), again.defaults


def consistent(examined: Examined) -> None:
    """The text and the JSON of a report say the same, and every diagnostic has its page and its place."""
    report = examined.report
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert report.step is not None or report.diagnostics, "neither a cost nor a finding"
    text = render(report.diagnostics, examined.sources)
    for d in report.diagnostics:
        assert d.code in rules(), f"{d.code} has no page"
        assert d.span.line >= 1 and d.span.column >= 1 and d.message, d
        assert d.code in text, f"{d.code} is not shown"
    if report.step is None:
        return
    with redirect_stdout(io.StringIO()) as shown:
        print_report(report)
    worst = max(s["per_device_gib"]["total"] for s in data["memory"]["stages"])
    assert worst == data["memory"]["per_device_gib"]["total"], "the fullest stage is not the plan's memory"
    words = shown.getvalue().split()
    assert f"of {report.step.peak}" in " ".join(words), "MFU without its peak"
    for number in (gib(worst), f"{data['step']['mfu']:.1%}", data["plan"] + ":"):
        assert number in words, f"{number} is in the JSON and not in the text"


PARTS = ("params", "grads", "optimizer", "activations", "buffers", "comm_buffers", "reserve")
SECONDS = ("compute_s", "recompute_s", "exposed_comm_s", "bubble_s", "optimizer_s", "offload_s", "overhead_s")


def laws(report: Report, plan: Plan) -> None:
    """Laws of every cost: sums are the sum of their parts, and nothing is below nothing or above the peak.

    The peak of MFU is that of the compute dtype, which matmuls in a narrow one exceed.
    """
    assert report.memory and report.step and report.cluster and report.collectives is not None
    for stage in report.memory.stages:
        _memory_law(stage)
    assert sum(s.ranks for s in report.memory.stages) == report.devices, "stages and ranks"
    _interval_law(report)
    step = report.step
    parts = [getattr(step, part) for part in SECONDS]
    assert min(parts) >= 0, "a part of the step is below 0 s"
    assert math.isclose(sum(parts), step.time_s, rel_tol=1e-6), "the step's parts are not its time"
    assert step.mfu > 0 and (plan.quantize or step.mfu <= 1), f"MFU {step.mfu}"
    chip, dtype = plan.cluster.chip, plan.precision.multiplied
    assert step.peak_dtype in ({dtype} & {*chip.flops_per_s} or chip.flops_per_s), "MFU is of another dtype's peak"
    assert step.peak_tflops == chip.flops_per_s[step.peak_dtype] / chip.devices / 1e12, "another peak than the chip's"
    assert math.isclose(step.mfu * step.peak_tflops, step.tflops_per_device, rel_tol=1e-9), (
        "MFU is no share of its peak"
    )
    rate = report.tokens_per_step / step.time_s / report.devices
    assert math.isclose(rate, step.tokens_per_s_per_device, rel_tol=1e-6), "tokens per second"
    for timed in report.collectives:
        row = timed.row
        assert row.payload_bytes >= 0 and row.wire_bytes >= 0 and row.count > 0, row
        assert 1 < row.group_size <= report.devices, row
        assert 0 <= timed.exposed_s <= timed.time_s * (1 + 1e-9), row
    assert math.prod(report.mesh.values()) == report.devices == report.cluster.devices


def _interval_law(report: Report) -> None:
    """An interval holds its estimate, what is allocated is held, and the upper end above the device has a finding."""
    assert report.memory and report.step and report.uncertainty
    step, peak, held = report.uncertainty.step_s, report.uncertainty.allocated_gib, report.memory.reserved_gib
    for interval, estimate in ((step, report.step.time_s), (peak, report.memory.allocated_gib)):
        assert interval.low <= estimate == interval.estimate <= interval.high, interval
    assert peak.low <= held.low and peak.high <= held.high, "more is allocated than is held"
    assert held.low <= report.memory.per_device_gib.total <= held.high, "the fullest device is outside of its limits"
    codes = {d.code for d in report.diagnostics}
    assert held.high <= report.memory.capacity_gib or codes & {"E0501", "W0508", "N0513"}, "may not fit, no finding"


def _memory_law(stage: StageMemory) -> None:
    parts = [getattr(stage.per_device_gib, part) for part in PARTS]
    assert min(parts) >= 0, f"a part of stage {stage.stage} is below 0 GiB"
    assert math.isclose(sum(parts), stage.per_device_gib.total, rel_tol=1e-6), f"the parts of stage {stage.stage}"


def answer(path: Path, target: Target, examined: Examined, outcome: Outcome, *, thorough: bool) -> None:
    """A target's answer: the program that `lower` gives, or the refusals that the report announced."""
    report = examined.report
    announced = next((t for t in report.targets if t.target == target), None)
    program, *others = (_lowered(path, target, r, None if thorough else examined, outcome) for r in RUNTIMES[target])
    if isinstance(program, list):
        assert program, f"{target}: refused without an error"
        outcome.refused[target] = sorted(set(program))
        assert announced is None or not announced.lowers, f"{target}: announced, and refused by {program}"
        assert announced is None or {r.code for r in announced.refusals} <= set(program), f"{target}: other codes"
        return
    assert announced is not None and announced.lowers, f"{target}: lowered, and not announced"
    outcome.lowered.append(target)
    for runtime, made in zip(RUNTIMES[target], (program, *others), strict=True):
        if isinstance(made, Program):
            assert not foreign(made.text), f"{runtime}: {foreign(made.text)}"
            assert not (twice := defined_twice(made.text)), f"{runtime}: {', '.join(twice)} defined twice"
            assert runtime != "jax" or not unknown_axes(made.text), f"{runtime}: no axes {unknown_axes(made.text)}"
            outcome.texts[runtime] = made.text
    if not thorough:
        return
    since = time.process_time()
    own = examine(path, target=target, targets=()).report
    outcome.timed(since)
    assert own.memory is not None and own.target == target, f"{target}: lowered, and not costed"
    laws(own, examined.plan)
    if report.target == target:
        assert (own.memory, own.step) == (report.memory, report.step), f"{target}: two costs"
    assert lower(path, target).text == program.text, f"{target}: two programs"


def _lowered(
    path: Path, target: Target, runtime: str, examined: Examined | None, outcome: Outcome
) -> Program | list[str]:
    """The program, or the codes of the errors that there is none for; with the layouts of `examined` if it has them."""
    since = time.process_time()
    try:
        if examined is not None and examined.sharded is not None and not examined.built.on:
            return lower_sharded(examined.sharded, target, runtime)
        return lower(path, target, runtime=runtime)
    except PlanError as error:
        return [d.code for d in error.diagnostics if d.severity == "error"]
    finally:
        outcome.timed(since)
