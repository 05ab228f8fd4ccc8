"""The view of sentences: each sentence of the plan with its cost in seconds, bytes sent and GiB, and its
diagnostics."""

from __future__ import annotations

from math import isnan

from planc.checks.cost.e0801_expect import COMPARE, measure, shown
from planc.costing.costed import CostedPlan
from planc.costing.explain import explain
from planc.picture.units import percent
from planc.report.data import Data, PageSubject
from planc.report.parts import MEMORY_PARTS as PARTS


class Item(Data):
    """Seconds of a step that a sentence causes."""

    part: str
    name: str
    seconds: float
    why: str


class Held(Data):
    """GiB of the fullest device that a sentence causes."""

    part: str
    gib: float


class PlanLine(Data):
    """A line of the plan's file. Lines without a sentence have no costs."""

    line: int
    text: str
    sentence: bool
    seconds: float
    """Seconds of the step's time, on the slowest rank."""
    share: float
    items: tuple[Item, ...]
    payload_bytes: float
    """Bytes of the collectives that the sentence causes, on the slowest stage."""
    calls: int
    memory: tuple[Held, ...]
    gib: float
    codes: tuple[str, ...]
    expects: str
    """The value that an `expect` sentence is compared with, and whether it holds; "" for other lines."""


class Sentences(Data):
    """The plan's text with its costs. Seconds of all lines and `other_s` sum to the step."""

    file: str
    lines: tuple[PlanLine, ...]
    other: tuple[Item, ...]
    """Seconds that no sentence causes."""
    other_s: float
    other_gib: float
    step_s: float
    total_gib: float
    summary: str


def sentences(subject: PageSubject) -> Sentences:
    """Return the cost of each line of the plan's file in `subject`."""
    examined, costed = subject.examined, subject.costed
    plan, built = costed.sharded.plan, examined.built
    assert built is not None
    source = built.sources.get(plan.file)
    rows = (source.text if source else "").splitlines() or [plan.name]
    written = _written_lines(subject)
    first_line = {verb: line for line, verb in sorted(written.items(), reverse=True)}
    seconds: dict[int, list[Item]] = {}
    for s in explain(costed):
        line = s.cause.span.line if s.cause and s.cause.span.file == plan.file else 0
        line = line or (first_line.get("model", 0) if s.part == "compute" else 0)
        line = line or (first_line.get("optimizer", 0) if s.part == "optimizer" else 0)
        seconds.setdefault(line, []).append(Item(part=s.part, name=s.name, seconds=s.seconds, why=s.why))
    moved: dict[int, tuple[float, int]] = {}
    for timed in costed.collectives:
        cause = timed.row.cause
        if timed.row.stage == costed.slowest and cause is not None and cause.span.file == plan.file:
            payload, calls = moved.get(cause.span.line, (0.0, 0))
            moved[cause.span.line] = payload + timed.row.payload_bytes, calls + timed.row.count
    held = _memory_by_line(subject, first_line)
    codes: dict[int, list[str]] = {}
    for d in examined.report.diagnostics:
        if d.span.file.rsplit("/", 1)[-1] == plan.file:
            codes.setdefault(d.span.line, []).append(d.code)
    expected = _expectations(costed)
    step_s = costed.step.time_s
    lines = tuple(
        PlanLine(
            line=n,
            text=text,
            sentence=n in written,
            seconds=sum(i.seconds for i in seconds.get(n, ())),
            share=sum(i.seconds for i in seconds.get(n, ())) / step_s,
            items=tuple(seconds.get(n, ())),
            payload_bytes=moved.get(n, (0.0, 0))[0],
            calls=moved.get(n, (0.0, 0))[1],
            memory=tuple(held.get(n, ())),
            gib=sum(k.gib for k in held.get(n, ())),
            codes=tuple(dict.fromkeys(codes.get(n, ()))),
            expects=expected.get(n, ""),
        )
        for n, text in enumerate(rows, 1)
    )
    shown = {line.line for line in lines}
    other = tuple(i for n, items in seconds.items() if n not in shown for i in items)
    worst = costed.memory.worst.per_device_gib.total
    ranked = sorted((line for line in lines if line.seconds), key=lambda line: -line.seconds)[:3]
    named = "; ".join(
        f"line {line.line}, `{' '.join(line.text.split('#')[0].split())}`, {percent(line.share)}" for line in ranked
    )
    return Sentences(
        file=plan.file,
        lines=lines,
        other=other,
        other_s=sum(i.seconds for i in other),
        other_gib=worst - sum(line.gib for line in lines),
        step_s=step_s,
        total_gib=worst,
        summary=f"Most of the step's time comes from {named}. Compute is counted at the model, state at what stores it,"
        " activations at `recompute` or the batch.",
    )


def _expectations(costed: CostedPlan) -> dict[int, str]:
    """Return for each line with an `expect` sentence if it holds, and the predicted value."""
    found: dict[int, str] = {}
    for expect in costed.sharded.plan.expects:
        value = measure(costed, expect.metric)
        if expect.cause.span.file == costed.sharded.plan.file and not isnan(value):
            holds = "holds" if COMPARE[expect.cmp](value, expect.value) else "does not hold"
            found[expect.cause.span.line] = f"{holds}: {shown(expect, value)}"
    return found


def _written_lines(subject: PageSubject) -> dict[int, str]:
    """Return for each line of the plan file the verb of its sentence."""
    built, file = subject.examined.built, subject.costed.sharded.plan.file
    found: dict[int, str] = {}
    for s in built.sentences if built else ():
        span = s.via.span if s.via else s.span
        if span.file == file:
            found.setdefault(span.line, "use" if s.via else s.verb)
    return found


def _memory_by_line(subject: PageSubject, first_line: dict[str, int]) -> dict[int, list[Held]]:
    plan, parts = subject.costed.sharded.plan, subject.costed.memory.worst.per_device_gib
    home = {"params": "model", "grads": "model", "optimizer": "optimizer", "comm_buffers": "mesh", "reserve": "cluster"}
    home |= {"activations": "recompute" if "recompute" in first_line else "batch"}
    home |= {"buffers": "gather" if "gather" in first_line else "batch"}
    found: dict[int, list[Held]] = {}
    for part in PARTS:
        amount = getattr(parts, part.css)
        stores = [s for s in plan.stores if s.noun == part.css and s.cause.span.file == plan.file]
        line = stores[0].cause.span.line if stores else first_line.get(home[part.css], first_line.get("model", 0))
        if amount > 0 and line:
            found.setdefault(line, []).append(Held(part=part.name, gib=amount))
    return found
