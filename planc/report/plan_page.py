"""The page of one plan, `planc.report.plan/1`, with the data of all views (sections) in reading order."""

from __future__ import annotations

from typing import Literal

from planc.costing.costed import CostedPlan
from planc.driver import Examined
from planc.ir.report import RunCost
from planc.ir.target import named
from planc.picture.units import count, days, gib, money, percent, seconds
from planc.report.data import Data, PageSubject
from planc.report.views.accuracy import Accuracy, accuracy
from planc.report.views.findings import Findings, findings
from planc.report.views.links import Links, links
from planc.report.views.machine import MachineView, machine
from planc.report.views.memory import MemoryView, memory
from planc.report.views.neighbours import Neighbours, neighbours
from planc.report.views.over_step import OverStep, over_step
from planc.report.views.roofline import Roofline, roofline
from planc.report.views.sentences import Sentences, sentences
from planc.report.views.shards import Shards, shards
from planc.report.views.timeline import TimelineCause, TimelineView, timeline
from planc.report.views.traffic import Traffic, traffic
from planc.version import __version__

Outcome = Literal["fits", "does not fit", "wrong"]


class Number(Data):
    """One of the verdict's numbers, with its reference value."""

    name: str
    value: float
    unit: str
    text: str
    of: str


class Verdict(Data):
    """One sentence and four numbers."""

    outcome: Outcome
    sentence: str
    numbers: tuple[Number, ...]
    headline: str
    """The numbers on one line."""


class PlanPage(Data):
    """The content of a page about one plan. Views are None if the plan has errors."""

    format: Literal["planc.report.plan/1"] = "planc.report.plan/1"
    planc_version: str
    plan: str
    plan_sha256: str | None
    target: str | None
    model: str
    about: str
    """Model, machine, mesh and batch in one line."""
    verdict: Verdict
    memory: MemoryView | None
    over_step: OverStep | None
    timeline: TimelineView | None
    traffic: Traffic | None
    machine: MachineView | None
    links: Links | None
    """Also None if the machine is not a graph of links."""
    shards: Shards | None
    roofline: Roofline | None
    neighbours: Neighbours | None
    findings: Findings
    sentences: Sentences | None
    accuracy: Accuracy | None
    text: str
    """The plan's file."""
    command: str

    @property
    def title(self) -> str:
        """The title of the page: the plan and its numbers."""
        return f"{self.plan}: {self.verdict.headline}"


def plan_page(examined: Examined, command: str) -> PlanPage:
    """Return the page of the plan in `examined` (its diagnostics and, unless it has errors, its cost). `command` is the
    command line that writes the page."""
    if examined.costed is None:
        return _wrong(examined, command)
    subject = PageSubject(examined=examined, costed=examined.costed, command=command)
    report, plan = examined.report, examined.costed.sharded.plan
    lines = sentences(subject)
    by_stage, sent = memory(subject), traffic(subject)
    over_time = timeline(subject, _causes(lines))
    return PlanPage(
        planc_version=__version__,
        plan=plan.name,
        plan_sha256=report.plan_sha256,
        target=report.target,
        model=plan.model.name,
        about=about(examined.costed),
        verdict=_verdict(subject),
        memory=by_stage,
        over_step=over_step(subject, by_stage, over_time),
        timeline=over_time,
        traffic=sent,
        machine=machine(subject, sent),
        links=links(subject),
        shards=shards(subject),
        roofline=roofline(subject),
        neighbours=neighbours(subject),
        findings=findings(examined),
        sentences=lines,
        accuracy=accuracy(subject),
        text=_text(examined),
        command=command,
    )


def _text(examined: Examined) -> str:
    built = examined.built
    return next(iter(built.sources.values())).text if built and built.sources else ""


def _causes(lines: Sentences) -> tuple[TimelineCause, ...]:
    """Return for each part of the step (compute, bubble, ...) the sentence that causes most of its seconds."""
    names = {"exposed communication": "exposed_comm"}
    most: dict[str, tuple[float, TimelineCause]] = {}
    for line in lines.lines:
        for part in {item.part for item in line.items}:
            total = sum(item.seconds for item in line.items if item.part == part)
            key = names.get(part, part)
            if total > most.get(key, (0.0, None))[0]:
                text = " ".join(line.text.split("#")[0].split())
                most[key] = total, TimelineCause(part=key, line=line.line, sentence=text)
    return tuple(cause for _, cause in most.values())


def about(costed: CostedPlan) -> str:
    """Return a line about the plan in `costed`: its model, machine, mesh and batch."""
    plan, cluster = costed.sharded.plan, costed.cluster
    mesh = " > ".join(f"{name} {n}" for name, n in plan.mesh.sizes.items())
    return (
        f"{plan.model.name} ({count(plan.model.parameters)} parameters) on {cluster.devices:,} devices"
        f" ({cluster.nodes:,} x {plan.cluster.name}), mesh {mesh}, {plan.batch.sequences:,} x"
        f" {plan.batch.sequence_tokens:,} tokens a step, {named(costed.target)}"
    )


def _verdict(subject: PageSubject) -> Verdict:
    costed, report = subject.costed, subject.examined.report
    used, step, limits = costed.memory, costed.step, costed.limits
    fullest, capacity = used.worst.per_device_gib.total, used.capacity_gib
    errors = [d for d in report.diagnostics if d.severity == "error"]
    fits = fullest <= capacity
    outcome: Outcome = "fits" if fits and not errors else "wrong" if fits else "does not fit"
    said = {
        "fits": f"{report.plan} fits",
        "does not fit": f"{report.plan} does not fit",
        "wrong": f"{report.plan} breaks {len(errors)} rule{'s' if len(errors) > 1 else ''} or expectations",
    }[outcome]
    devices = costed.cluster.devices
    numbers = (
        Number(
            name="Memory of the fullest device",
            value=fullest,
            unit="GiB",
            text=f"{gib(fullest)} GiB",
            of=f"of {gib(capacity)} GiB, {percent(fullest / capacity)}",
        ),
        Number(
            name="Time of a step",
            value=step.time_s,
            unit="s",
            text=seconds(step.time_s),
            of=f"bound by {limits.bound_by}",
        ),
        Number(
            name="MFU (model FLOPs utilization)",
            value=step.mfu,
            unit="share of the dense peak",
            text=percent(step.mfu),
            of=f"{step.tflops_per_device:.3g} of {step.peak} a device",
        ),
        Number(
            name="Tokens each second",
            value=step.tokens_per_s_per_device * devices,
            unit="tokens/s",
            text=count(step.tokens_per_s_per_device * devices),
            of=f"{step.tokens_per_s_per_device:,.0f} a device",
        ),
    )
    stage = f"stage {used.worst.stage} takes" if len(used.stages) > 1 else "each takes"
    sentence = (
        f"{said} its {devices:,} devices: {stage} {gib(fullest)} of {gib(capacity)} GiB, and a step of"
        f" {count(report.tokens_per_step or 0)} tokens takes {seconds(step.time_s)} at {percent(step.mfu)} of the"
        f" peak, {step.peak} a device, bound by {limits.bound_by}."
    )
    headline = (
        f"{gib(fullest)} of {gib(capacity)} GiB, {seconds(step.time_s)} a step, MFU {percent(step.mfu)} of"
        f" {step.peak}, {numbers[3].text} tokens/s"
    )
    more = run_numbers(costed.run)
    return Verdict(
        outcome=outcome,
        sentence=sentence + run_sentence(costed.run),
        numbers=(*numbers, *more),
        headline=", ".join([headline, *(n.text for n in more)]),
    )


def run_numbers(run: RunCost | None) -> tuple[Number, ...]:
    """Return the days and the price of the whole training `run`; () if the plan does not determine them."""
    if run is None or run.days is None or run.device_hours is None or run.tokens is None:
        return ()
    length = Number(
        name="The whole run",
        value=run.days,
        unit="days",
        text=days(run.days),
        of=f"of {count(run.tokens)} tokens, {count(run.device_hours)} device hours",
    )
    if run.price is None or run.price_per_hour is None or run.currency is None:
        return (length,)
    rate = f"at {money(run.price_per_hour, run.currency)} an hour"
    text = money(run.price, run.currency)
    return (length, Number(name="Price of the run", value=run.price, unit=run.currency, text=text, of=rate))


def run_sentence(run: RunCost | None) -> str:
    """Return a sentence about the whole training `run`, to append to other text; "" if its days are unknown."""
    numbers = run_numbers(run)
    if run is None or run.steps is None or not numbers:
        return ""
    paid = f" and costs {numbers[1].text}" if len(numbers) > 1 else ""
    return f" The run of {run.steps:,} steps takes {numbers[0].text}{paid}, failures and checkpoints counted."


def _wrong(examined: Examined, command: str) -> PlanPage:
    """Return the page of a plan with errors, which has only its diagnostics and its text."""
    report = examined.report
    found = findings(examined)
    errors = [f for f in found.findings if f.severity == "error"]
    name = report.plan or "The plan"
    first = f": {errors[0].code} at line {errors[0].line}, {errors[0].message}" if errors else ""
    sentence = f"{name} is not costed{first}."
    return PlanPage(
        planc_version=__version__,
        plan=name,
        plan_sha256=report.plan_sha256,
        target=report.target,
        model=report.model.name if report.model else "",
        about="",
        verdict=Verdict(outcome="wrong", sentence=sentence, numbers=(), headline=found.summary),
        memory=None,
        over_step=None,
        timeline=None,
        traffic=None,
        machine=None,
        links=None,
        shards=None,
        roofline=None,
        neighbours=None,
        findings=found,
        sentences=None,
        accuracy=None,
        text=_text(examined),
        command=command,
    )
