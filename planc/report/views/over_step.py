"""The view of memory over the step, on the fullest stage: when the peak is, and what it consists of."""

from __future__ import annotations

from planc.costing.memory.peak import GIB
from planc.costing.step.memory_over_step import held_by_rank, sizes_over_time
from planc.picture.charts import legend
from planc.picture.marks import Circle, Mark, Path, Picture, StraightLine, Text, text_px
from planc.picture.scales import Scale, tick_text
from planc.picture.units import gib, seconds
from planc.pipeline.actions import KINDS, Action
from planc.pipeline.simulate import ActionSpan
from planc.report.data import Data, PageSubject
from planc.report.parts import MEMORY_PARTS as PARTS
from planc.report.views.memory import MemoryParts, MemoryView
from planc.report.views.timeline import US, TimelineView

MOST_POINTS = 600
"""Number of points of the curve; longer ones keep the maximum of each interval."""
STEADY = ("reserve", "comm_buffers", "params", "optimizer")
"""Parts that are constant through the step."""
GIVES_BACK = ("backward", "backward_weight")
ROUNDING = 1e-9
WORKING = ("grads", "buffers")
"""Parts that are drawn at their maximum: gradients, and buffers of a layer's backward."""


class OverStep(Data):
    """Memory curve of one device of the fullest stage. Points are joined by straight lines."""

    stage: int
    capacity_gib: float
    at_peak_gib: MemoryParts
    peak_s: float
    peak_gib: float
    peak_at: str
    times_s: tuple[float, ...]
    activations_gib: tuple[float, ...]
    working_gib: tuple[float, ...]
    """Gradients and buffers."""
    summary: str

    @property
    def steady_gib(self) -> float:
        """GiB that are allocated during the whole step."""
        parts: list[float] = [getattr(self.at_peak_gib, name) for name in STEADY]
        return sum(parts)


def over_step(subject: PageSubject, memory: MemoryView, timeline: TimelineView) -> OverStep:
    """Return the memory of the fullest stage of `subject` over the step. `timeline` has the actions of the step,
    `memory` the memory of each stage."""
    worst, row = memory.worst, timeline.ranks[memory.worst.stage]
    spans = [
        ActionSpan(Action(KINDS[letter], stage, microbatch), row.rank, start / US, (start + length) / US)
        for letter, stage, microbatch, start, length in zip(
            row.actions, row.stage, row.microbatch, row.start_us, row.length_us, strict=True
        )
    ]
    held = held_by_rank(subject.costed, row.rank, spans, timeline.makespan_s)
    changes = sizes_over_time(h for h in held if h.part == "activations")
    working = [h for h in held if h.part in WORKING]
    begin_s = max((h.start_s for h in working), default=0.0)
    points = [(0.0, 0.0)]
    for at_s, size in changes:
        points += [(at_s, points[-1][1]), (at_s, size / GIB)]
    end_s = timeline.makespan_s + sum(row.after_s.values())
    # What comes at the update comes when the last activations are gone, were it at the same moment.
    curve = [(at_s, gib, at_s >= begin_s and (begin_s == 0 or gib == 0)) for at_s, gib in _fewer(points)]
    if begin_s > 0:
        curve.append((begin_s, 0.0, False))
    curve += [(at_s, 0.0, True) for at_s in (max(begin_s, changes[-1][0] if changes else 0.0), end_s)]
    works_gib = sum(h.size_bytes for h in working) / GIB
    peak_s = begin_s if begin_s > 0 else _first_peak_s(changes, spans, worst.peak_at)
    return OverStep(
        stage=worst.stage,
        capacity_gib=memory.capacity_gib,
        at_peak_gib=worst.parts_gib,
        peak_s=peak_s,
        peak_gib=worst.total_gib,
        peak_at=worst.peak_at,
        times_s=tuple(round(at_s, 6) for at_s, _, _ in curve),
        activations_gib=tuple(round(gib, 4) for _, gib, _ in curve),
        working_gib=tuple(works_gib if works else 0.0 for _, _, works in curve),
        summary=_message(worst.stage, worst.parts_gib, peak_s, worst.peak_at, len(memory.stages) > 1),
    )


def _first_peak_s(changes: list[tuple[float, float]], spans: list[ActionSpan], moment: str) -> float:
    """Return the first time (s) at which activations peak. If `moment` (in words) is in a backward, it is the start of
    the backward that first frees some of them."""
    most = max((size for _, size in changes), default=0.0)
    first = next((i for i, (_, size) in enumerate(changes) if size >= most * (1 - ROUNDING)), 0)
    if not changes or "backward" not in moment:
        return changes[first][0] if changes else 0.0
    less_s = next((at_s for at_s, size in changes[first:] if size < most * (1 - ROUNDING)), changes[-1][0])
    return max((span.start_s for span in spans if span.end_s <= less_s and span.action.kind in GIVES_BACK), default=0.0)


def _fewer(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    stretch = -(-len(points) // MOST_POINTS)
    if stretch == 1:
        return points
    pieces = [points[i : i + 2 * stretch] for i in range(0, len(points), 2 * stretch)]
    found = [(p, q) for piece in pieces for p, q in [(min(piece, key=_level), max(piece, key=_level))]]
    return [point for pair in found for point in sorted(pair)]


def _level(point: tuple[float, float]) -> float:
    return point[1]


def _message(stage: int, parts: MemoryParts, peak_s: float, moment: str, staged: bool) -> str:
    total = sum(parts.values)
    largest = sorted(PARTS, key=lambda p: -getattr(parts, p.css))[:3]
    of = ", ".join(f"{p.name} {gib(getattr(parts, p.css))}" for p in largest)
    where = f"a device of stage {stage}" if staged else "a device"
    return (
        f"From {seconds(peak_s)} of the step on, at the {moment}, {where} is fullest: {gib(total)} GiB, of which {of}"
        " GiB."
        " State stays through the step; gradients and buffers are drawn at their largest, activations come and go."
    )


def picture(data: OverStep, width: float) -> Picture:
    """Return stacked areas of the memory in `data` over the seconds of the step, `width` pixels wide."""
    shown = [p for p in PARTS if getattr(data.at_peak_gib, p.css) > 0]
    marks, top = legend(shown, width)
    top += 22
    left, bottom = 44.0, top + (220 if width > 500 else 190)
    across = Scale(0, max(data.times_s) or 1.0, left, width - 10)
    up = Scale(0, max(data.capacity_gib, data.peak_gib) * 1.02, bottom, top)
    for tick in up.ticks(5):
        y = up.px(tick)
        marks += [StraightLine(left, y, width - 10, y, "grid"), Text(left - 6, y + 4, tick_text(tick), "small", "end")]
    for tick in across.ticks(8 if width > 500 else 4):
        marks.append(Text(across.px(tick), bottom + 16, tick_text(tick), "small", "middle"))
    marks += [
        Text(0, top - 10, "GiB", "small"),
        Text(width - 10, bottom + 32, "seconds of the step", "small", "end"),
    ]
    marks += _areas(data, across, up)
    y = up.px(data.capacity_gib)
    name = f"{gib(data.capacity_gib)} GiB of a device"
    marks += [StraightLine(left, y, width - 10, y, "limit"), Text(width - 10, y - 5, name, "limit-text halo", "end")]
    marks += _peak(data, across, up, width)
    return Picture(width, bottom + 38, "Memory of the fullest device over the step", data.summary, tuple(marks))


def _areas(data: OverStep, across: Scale, up: Scale) -> list[Mark]:
    """Return the areas from bottom to top: state, then gradients and buffers, then activations."""
    marks: list[Mark] = []
    floor = [0.0] * len(data.times_s)
    parts = data.at_peak_gib
    whole = parts.grads + parts.buffers or 1.0
    for part in ("reserve", "comm_buffers", "params", "optimizer", "grads", "buffers", "activations"):
        amount = getattr(parts, part)
        if part == "activations":
            levels = list(data.activations_gib)
        elif part in WORKING:
            levels = [w * amount / whole for w in data.working_gib]
        else:
            levels = [amount] * len(floor)
        if not any(levels):
            continue
        roof = [f + level for f, level in zip(floor, levels, strict=True)]
        name = next(p.name for p in PARTS if p.css == part)
        title = f"{name}: {gib(amount)} GiB at the fullest moment"
        marks.append(Path(_area(data.times_s, floor, roof, across, up), part, title))
        floor = roof
    return marks


def _area(times: tuple[float, ...], floor: list[float], roof: list[float], across: Scale, up: Scale) -> str:
    there = [f"{across.px(times[i]):.1f} {up.px(roof[i]):.1f}" for i in _bends(roof)]
    back = [f"{across.px(times[i]):.1f} {up.px(floor[i]):.1f}" for i in reversed(_bends(floor))]
    return f"M{'L'.join([*there, *back])}Z"


def _bends(levels: list[float]) -> list[int]:
    """Return the indices of the points to draw: all, or only the ends if the curve is constant."""
    return list(range(len(levels))) if len(set(levels)) > 1 else [0, len(levels) - 1]


def _peak(data: OverStep, across: Scale, up: Scale, width: float) -> list[Mark]:
    x, y = across.px(data.peak_s), up.px(data.peak_gib)
    text = f"fullest: {gib(data.peak_gib)} GiB at {seconds(data.peak_s)}"
    right = x + 10 + text_px(text) < width - 10
    limit = up.px(data.capacity_gib)
    foot = y - 6 if not limit - 2 < y - 6 < limit + 16 else limit - 6 if x + text_px(text) < width - 200 else y + 18
    return [
        Circle(x, y, 4, "bad", data.summary),
        Text(x + 10 if right else x - 10, foot, text, "strong halo", "start" if right else "end"),
    ]
