"""The page that compares two plans: `planc.report.diff/1`."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Literal

from planc.compare.diff import Diff
from planc.costing.costed import CostedPlan
from planc.driver import Examined
from planc.ir.report import RunCost, Step
from planc.picture.charts import Bar, Limit, stacked_bars
from planc.picture.marks import Picture
from planc.picture.units import count, gib, percent, seconds, size
from planc.report.data import Data, PageView
from planc.report.parts import MEMORY_PARTS, STEP_PARTS
from planc.report.plan_page import Number, about, run_numbers
from planc.report.views.memory import MemoryParts
from planc.version import __version__


class StepParts(Data):
    """Seconds of a step on the slowest rank; the parts sum to its time."""

    compute_s: float
    recompute_s: float
    exposed_comm_s: float
    bubble_s: float
    optimizer_s: float
    offload_s: float
    overhead_s: float

    @property
    def values(self) -> list[float]:
        """The seconds of the parts, in the order of `STEP_PARTS`."""
        return [getattr(self, f"{part.css}_s") for part in STEP_PARTS]


class Side(Data):
    """One of the two plans."""

    letter: Literal["A", "B"]
    file: str
    plan: str
    about: str
    target: str | None
    time_s: float
    step: StepParts
    total_gib: float
    memory: MemoryParts
    capacity_gib: float
    fits: bool


class Changed(Data):
    """One difference; "" for a plan that lacks the item."""

    name: str
    a: str
    b: str
    change: str


class DiffRow(Data):
    """Aligned lines of both plans: `same`, or changed in one of them."""

    same: bool
    a_line: int | None
    a: str
    b_line: int | None
    b: str


class DiffVerdict(Data):
    """One sentence and four numbers, B's compared with A's."""

    sentence: str
    numbers: tuple[Number, ...]
    headline: str


class Bars(Data):
    """The parts of both plans, for the picture of the view."""

    sides: tuple[Side, Side]
    summary: str


class Losses(Data):
    """True or False for comparable losses of both plans, with the reasons."""

    comparable: bool
    reasons: tuple[Changed, ...]
    summary: str


class DiffPage(Data):
    """The content of a page about two plans."""

    format: Literal["planc.report.diff/1"] = "planc.report.diff/1"
    planc_version: str
    verdict: DiffVerdict
    step: Bars
    memory: Bars
    decisions: tuple[Changed, ...]
    collectives: tuple[Changed, ...]
    shards: tuple[Changed, ...]
    losses: Losses
    checkpoint: str
    lines: tuple[DiffRow, ...]
    command: str

    @property
    def title(self) -> str:
        """The title of the page: both plans and what changes."""
        a, b = self.step.sides
        return f"{a.plan} and {b.plan}: {self.verdict.headline}"


def diff_page(a: Examined, b: Examined, found: Diff, command: str) -> DiffPage:
    """Return the page that compares two costed plans, `a` and `b`. `found` are their differences, and `command` is the
    command line that writes the page."""
    assert a.costed is not None and b.costed is not None
    one, other = _side("A", a.costed, found.a), _side("B", b.costed, found.b)
    sides = (one, other)
    return DiffPage(
        planc_version=__version__,
        verdict=_verdict(a.costed, b.costed, found),
        step=Bars(sides=sides, summary=_step_message(one, other)),
        memory=Bars(sides=sides, summary=_memory_message(one, other)),
        decisions=tuple(_changed(c.name, c.a, c.b, "") for c in found.changes if c.part == "plan"),
        collectives=tuple(
            _changed(f"{c.name}, {c.unit}", c.a, c.b, c.unit) for c in found.changes if c.part == "collectives"
        ),
        shards=tuple(_changed(", ".join(c.names), c.a, c.b, "") for c in found.changes if c.part == "shards"),
        losses=_losses(found),
        checkpoint=checkpoint_text(found),
        lines=tuple(_rows(_text(a), _text(b))),
        command=command,
    )


def _text(examined: Examined) -> list[str]:
    built = examined.built
    return next(iter(built.sources.values())).text.splitlines() if built and built.sources else []


def _side(letter: Literal["A", "B"], costed: CostedPlan, file: str) -> Side:
    step, used = costed.step, costed.memory
    worst = used.worst.per_device_gib
    return Side(
        letter=letter,
        file=file,
        plan=costed.sharded.plan.name,
        about=about(costed),
        target=costed.target,
        time_s=step.time_s,
        step=StepParts(**{name: getattr(step, name) for name in StepParts.model_fields}),
        total_gib=worst.total,
        memory=MemoryParts(**{p.css: getattr(worst, p.css) for p in MEMORY_PARTS}),
        capacity_gib=used.capacity_gib,
        fits=worst.total <= used.capacity_gib,
    )


def _mfu(step: Step) -> str:
    return f"{percent(step.mfu)} of {step.peak}"


def _verdict(a: CostedPlan, b: CostedPlan, found: Diff) -> DiffVerdict:
    used = [c.memory.worst.per_device_gib.total for c in (a, b)]
    rates = [c.step.tokens_per_s_per_device * c.cluster.devices for c in (a, b)]
    four = (
        _number("Memory of the fullest device", used[1], "GiB", f"{gib(used[1])} GiB", f"{gib(used[0])} GiB", used[0]),
        _number("Time of a step", b.step.time_s, "s", seconds(b.step.time_s), seconds(a.step.time_s), a.step.time_s),
        _number("MFU", b.step.mfu, "share of the dense peak", _mfu(b.step), _mfu(a.step), a.step.mfu),
        _number("Tokens each second", rates[1], "tokens/s", count(rates[1]), count(rates[0]), rates[0]),
    )
    numbers: tuple[Number, ...] = (*four, *_run_numbers(a.run, b.run))
    if not found.changes and not found.apart:
        return DiffVerdict(
            sentence="Both plans have the same shards, collectives, memory and time.",
            numbers=numbers,
            headline="the same",
        )
    headline = (
        f"step {seconds(a.step.time_s)} to {seconds(b.step.time_s)} ({_ratio(a.step.time_s, b.step.time_s)}), memory"
        f" {gib(used[0])} to {gib(used[1])} GiB, losses {'' if found.comparable else 'not '}comparable"
    )
    fits = [u <= c.memory.capacity_gib for u, c in zip(used, (a, b), strict=True)]
    ends = {
        (True, True): "both fit",
        (True, False): "B does not fit",
        (False, True): "only B fits",
        (False, False): "neither fits",
    }
    sentence = (
        f"A step takes {seconds(b.step.time_s)} in B instead of {seconds(a.step.time_s)} in A"
        f" ({_ratio(a.step.time_s, b.step.time_s)}), the fullest device {gib(used[1])} instead of"
        f" {gib(used[0])} GiB; {ends[fits[0], fits[1]]}. Losses"
        f" {'stay comparable' if found.comparable else 'are not comparable'}."
    )
    return DiffVerdict(sentence=sentence, numbers=numbers, headline=headline)


def _run_numbers(a: RunCost | None, b: RunCost | None) -> tuple[Number, ...]:
    """Return the days and the price of B's whole run, with A's for comparison; () if B's are unknown."""
    before = {n.unit: n for n in run_numbers(a)}
    return tuple(
        _number(n.name, n.value, n.unit, n.text, before[n.unit].text, before[n.unit].value) if n.unit in before else n
        for n in run_numbers(b)
    )


def _number(name: str, value: float, unit: str, text: str, before: str, old: float) -> Number:
    return Number(name=name, value=value, unit=unit, text=text, of=f"was {before} ({_ratio(old, value)})")


def _ratio(old: float, new: float) -> str:
    if not old:
        return "from none" if new else "the same"
    if new / old >= 10:
        return f"{new / old:.0f} x"
    return f"{new / old - 1:+.1%}".replace("%", " %")


def _changed(name: str, a: float | str | None, b: float | str | None, unit: str) -> Changed:
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    change = _ratio(float(a or 0), float(b or 0)) if numbers else ""
    return Changed(name=name, a=_value(a, unit), b=_value(b, unit), change=change)


def _value(value: float | str | None, unit: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return size(value) if unit == "bytes" else f"{value:,.0f}"


def _step_message(a: Side, b: Side) -> str:
    apart = sorted(zip(STEP_PARTS, a.step.values, b.step.values, strict=True), key=lambda p: -abs(p[2] - p[1]))[:3]
    named = ", ".join(f"{p.name} {seconds(old)} to {seconds(new)}" for p, old, new in apart if old != new)
    return f"The parts that change most: {named}." if named else "No part of the step changes."


def _memory_message(a: Side, b: Side) -> str:
    apart = sorted(zip(MEMORY_PARTS, a.memory.values, b.memory.values, strict=True), key=lambda p: -abs(p[2] - p[1]))[
        :3
    ]
    named = ", ".join(f"{p.name} {gib(old)} to {gib(new)} GiB" for p, old, new in apart if old != new)
    return f"On the fullest device: {named}." if named else "No part of the memory changes."


def _losses(found: Diff) -> Losses:
    reasons = tuple(Changed(name=r.what, a=r.a, b=r.b, change="") for r in found.apart)
    summary = (
        "Losses stay comparable: same model, tokens of a step, precision and tokens kept."
        if found.comparable
        else f"Losses are not comparable: {', '.join(r.what for r in found.apart)}."
    )
    return Losses(comparable=found.comparable, reasons=reasons, summary=summary)


def checkpoint_text(found: Diff) -> str:
    """Return a sentence that says if a checkpoint of plan A can be loaded under plan B, and how many bytes that
    transfers. `found` are the differences between the plans."""
    move = found.checkpoint
    if move is None:
        return "A checkpoint of A does not load in B: no tensor of one model's is the other's."
    whole = f"A checkpoint of A ({size(move.checkpoint_bytes)}) loads in B"
    if not move.same_machine:
        return (
            f"{whole}; the machines are others, so that all {size(move.needed_bytes)} come from elsewhere,"
            f" {size(move.worst_device_bytes)} at most to one device."
        )
    if not move.moved_bytes:
        return f"{whole}, and every device has what it needs."
    return (
        f"{whole}: {size(move.moved_bytes)} of the {size(move.needed_bytes)} that B's devices hold move,"
        f" {size(move.worst_device_bytes)} at most to one device."
    )


def _rows(a: list[str], b: list[str]) -> list[DiffRow]:
    found: list[DiffRow] = []
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for k in range(max(i2 - i1, j2 - j1)):
            i, j = i1 + k, j1 + k
            has_a, has_b = i < i2, j < j2
            found.append(
                DiffRow(
                    same=kind == "equal",
                    a_line=i + 1 if has_a else None,
                    a=a[i] if has_a else "",
                    b_line=j + 1 if has_b else None,
                    b=b[j] if has_b else "",
                )
            )
    return found


def step_picture(data: Bars, width: float) -> Picture:
    """Return stacked bars of the step of both plans in `data`, `width` pixels wide."""
    rows = [Bar(f"{s.letter} {s.plan}", s.step.values, seconds(s.time_s)) for s in data.sides]
    title = "Time of a step of both plans"
    return stacked_bars(rows, STEP_PARTS, title=title, summary=data.summary, unit="seconds", width=width)


def memory_picture(data: Bars, width: float) -> Picture:
    """Return stacked bars of the fullest device of both plans in `data`, `width` pixels wide."""
    rows = [Bar(f"{s.letter} {s.plan}", s.memory.values, f"{gib(s.total_gib)} GiB") for s in data.sides]
    low = min(s.capacity_gib for s in data.sides)
    same = data.sides[0].capacity_gib == data.sides[1].capacity_gib
    limit = Limit(low, f"{gib(low)} GiB of a device{'' if same else ', the smaller one'}")
    title = "Memory of the fullest device of both plans"
    return stacked_bars(rows, MEMORY_PARTS, title=title, summary=data.summary, unit="GiB", width=width, limit=limit)


DIFF_VIEWS: tuple[PageView, ...] = (
    PageView("verdict", "Verdict"),
    PageView("step", "Time of a step", step_picture),
    PageView("memory", "Memory of the fullest device", memory_picture),
    PageView("decisions", "Decisions"),
    PageView("collectives", "Collectives"),
    PageView("shards", "Layouts of tensors"),
    PageView("losses", "Are losses comparable?"),
    PageView("checkpoint", "Does the checkpoint load?"),
    PageView("lines", "Both plans"),
    PageView("command", "This page again"),
)
"""The views of a page of two plans."""
