"""The timeline view: every action of every pipeline rank in a step."""

from __future__ import annotations

from itertools import groupby

from planc.costing.costed import CostedPlan
from planc.costing.step.optimizer import optimizer_s
from planc.costing.step.step_time import overhead_s, updated_load
from planc.picture.charts import BarPart, legend
from planc.picture.marks import Mark, Path, Picture, Rect, StraightLine, Text, text_px
from planc.picture.scales import Scale, tick_text
from planc.picture.units import percent, seconds
from planc.pipeline.actions import LETTERS
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.simulate import ActionSpan, action_spans
from planc.pipeline.split import action_lists, microbatch_copies, schedule_of
from planc.report.data import Data, PageSubject
from planc.sharding.stage_assignment import virtual_stages

MOST_ACTIONS = 14_000
"""Number of actions in a timeline; a longer step is shown with fewer microbatches."""
MOST_ROWS = 32
MOST_ROWS_NARROW = 12
"""Number of ranks that the picture draws; with more, a sample and the slowest."""
US = 1e6
PARTS = (
    BarPart("forward", "forward"),
    BarPart("backward", "backward"),
    BarPart("recompute", "recompute"),
    BarPart("exposed_comm", "exposed communication"),
    BarPart("optimizer", "optimizer"),
    BarPart("overhead", "overhead and offload"),
    BarPart("bubble", "bubble"),
)


class StageSeconds(Data):
    """Seconds of one microbatch on a virtual stage, by part and direction."""

    stage: int
    forward_s: float
    backward_s: float
    """Compute of the whole backward: dgrad and wgrad."""
    weight_s: float
    """The wgrad part of it."""
    recompute_s: float
    exposed_forward_s: float
    exposed_backward_s: float


class RankTimeline(Data):
    """One pipeline rank. Its actions are columns: letter, virtual stage, microbatch, start and length."""

    rank: int
    stages: tuple[int, ...]
    actions: str
    """One letter per action: F forward, B backward, I and W its dgrad and wgrad."""
    stage: tuple[int, ...]
    microbatch: tuple[int, ...]
    start_us: tuple[int, ...]
    length_us: tuple[int, ...]
    after_s: dict[str, float]
    """Seconds after the last microbatch, by part."""
    waits_s: float
    """Seconds in which the rank waits for others, within the shown actions."""


class PartSeconds(Data):
    """Seconds of the step in one part on the slowest rank."""

    part: str
    name: str
    seconds: float
    share: float


class TimelineCause(Data):
    """The sentence that causes a part of the timeline."""

    part: str
    line: int
    sentence: str


class TimelineView(Data):
    """Timeline view. If all microbatches are shown, the last action ends at `makespan_s`."""

    step_s: float
    slowest: int
    microbatches: int
    microbatches_shown: int
    makespan_s: float
    """End of the last action that is shown."""
    parts: tuple[PartSeconds, ...]
    """Parts of the step on the slowest rank; they sum to `step_s`."""
    costs: tuple[StageSeconds, ...]
    ranks: tuple[RankTimeline, ...]
    causes: tuple[TimelineCause, ...]
    summary: str


def timeline(subject: PageSubject, causes: tuple[TimelineCause, ...]) -> TimelineView:
    """Return the simulated step of `subject`. `causes` has for each part of the step (compute, bubble, ...) the
    sentence that causes most of it."""
    costed = subject.costed
    plan, step = costed.sharded.plan, costed.step
    shown, spans = shown_spans(costed)
    end_s = max(span.end_s for span in spans)
    by_rank = {rank: list(of) for rank, of in groupby(spans, key=lambda span: span.rank)}
    names = {"compute": "compute", "recompute": "recompute", "exposed_comm": "exposed communication"}
    names |= {"bubble": "bubble", "optimizer": "optimizer", "offload": "offload", "overhead": "overhead"}
    parts = tuple(
        PartSeconds(part=part, name=name, seconds=value, share=value / step.time_s)
        for part, name in names.items()
        if (value := getattr(step, f"{part}_s")) > 0
    )
    return TimelineView(
        step_s=step.time_s,
        slowest=costed.slowest,
        microbatches=plan.microbatches,
        microbatches_shown=shown,
        makespan_s=end_s,
        parts=parts,
        costs=tuple(
            StageSeconds(
                stage=v,
                forward_s=c.forward_s,
                backward_s=c.backward_s,
                weight_s=c.weight_s,
                recompute_s=c.recompute_s,
                exposed_forward_s=c.exposed_forward_s,
                exposed_backward_s=c.exposed_backward_s,
            )
            for v, c in enumerate(costed.timed.costs)
        ),
        ranks=tuple(_rank(costed, rank, by_rank.get(rank, []), end_s) for rank in range(plan.pipeline)),
        causes=causes,
        summary=_message(costed, parts, shown),
    )


def shown_spans(costed: CostedPlan) -> tuple[int, list[ActionSpan]]:
    """Return the number of microbatches to show, and the actions of a step of `costed` with that many: with the same
    schedule, but shorter if the real step has too many actions."""
    plan = costed.sharded.plan
    shown = microbatches_shown(costed)
    lists = action_lists(costed.timed.split, plan.pipeline, shown)
    return shown, action_spans(lists, costed.timed.times)


def microbatches_shown(costed: CostedPlan) -> int:
    """Return the number of microbatches in the timeline of `costed`: those of a step, or fewer if it has too many
    actions."""
    plan, split = costed.sharded.plan, costed.timed.split
    each = 2 * len(plan.stages)
    if plan.microbatches * each <= MOST_ACTIONS or (split is not None and split.order):
        return plan.microbatches
    if split is None:
        return MOST_ACTIONS // each
    schedule, copies = schedule_of(split), microbatch_copies(split)
    unit = plan.pipeline * copies
    for times in range(max(2, MOST_ACTIONS // (each * unit)), 0, -1):
        if schedule.need(ScheduleShape(plan.pipeline, split.chunks, times * unit)) is None:
            return min(plan.microbatches, times * unit)
    return plan.microbatches


def _rank(costed: CostedPlan, rank: int, spans: list[ActionSpan], end_s: float) -> RankTimeline:
    plan = costed.sharded.plan
    held = virtual_stages(plan, rank)
    after = {
        "exposed_comm": costed.timed.after_s[rank],
        "optimizer": optimizer_s(costed.timed.updates, updated_load(costed.sharded, rank), plan.model.blocks),
        "offload": costed.timed.offload_s[rank],
        "overhead": overhead_s(plan, len(held)),
    }
    return RankTimeline(
        rank=rank,
        stages=held,
        actions="".join(LETTERS[span.action.kind] for span in spans),
        stage=tuple(span.action.stage for span in spans),
        microbatch=tuple(span.action.microbatch for span in spans),
        start_us=tuple(round(span.start_s * US) for span in spans),
        length_us=tuple(round((span.end_s - span.start_s) * US) for span in spans),
        after_s={part: value for part, value in after.items() if value > 0},
        waits_s=max(0.0, end_s - sum(span.end_s - span.start_s for span in spans)),
    )


def _message(costed: CostedPlan, parts: tuple[PartSeconds, ...], shown: int) -> str:
    plan = costed.sharded.plan
    named = ", ".join(f"{p.name} {seconds(p.seconds)} ({percent(p.share)})" for p in parts if p.share >= 0.0005)
    who = f"on rank {costed.slowest}, the slowest: " if plan.pipeline > 1 else ""
    whole = f"A step takes {seconds(costed.step.time_s)}; {who}{named}."
    if plan.pipeline > 1:
        whole += " The slowest rank waits least; the others wait for it."
    if shown == plan.microbatches:
        return whole
    return (
        f"{whole} The picture shows a step of {shown:,} of the {plan.microbatches:,} microbatches; the others repeat."
    )


# The picture.


def rows_shown(data: TimelineView, most: int = MOST_ROWS) -> list[RankTimeline]:
    """Return at most `most` ranks of `data`, evenly spaced, always including the slowest."""
    count = len(data.ranks)
    if count <= most:
        return list(data.ranks)
    spread = {round(i * (count - 1) / (most - 2)) for i in range(most - 1)}
    return [data.ranks[i] for i in sorted(spread | {data.slowest})]


def picture(data: TimelineView, width: float) -> Picture:
    """Return the timeline in `data` over the seconds of the step, one row per rank, `width` pixels wide."""
    rows = rows_shown(data, MOST_ROWS if width > 500 else MOST_ROWS_NARROW)
    names = {r.rank: f"rank {r.rank}" if len(data.ranks) > 1 else "device" for r in rows}
    marks, top = legend(legend_of(data), width)
    left = max(text_px(name) for name in names.values()) + 10
    end_s = data.makespan_s + max((sum(r.after_s.values()) for r in data.ranks), default=0.0)
    scale = Scale(0, end_s, left, width - 8)
    bar, gap = (22, 6) if len(rows) <= 8 else (14, 3)
    bottom = top + len(rows) * (bar + gap)
    for tick in scale.ticks(8 if width > 500 else 4):
        x = scale.px(tick)
        marks += [StraightLine(x, top - 2, x, bottom, "grid"), Text(x, bottom + 15, tick_text(tick), "small", "middle")]
    marks.append(Text(width - 8, bottom + 30, "seconds of the step", "small", "end"))
    for at, row in enumerate(rows):
        y = top + at * (bar + gap)
        css = "strong" if row.rank == data.slowest and len(data.ranks) > 1 else ""
        marks.append(Text(left - 8, y + bar / 2 + 4, names[row.rank], css, "end"))
        marks.append(Rect(left, y, scale.px(data.makespan_s) - left, bar, "bubble"))
        marks += _row(data, row, scale, y, bar)
    return Picture(width, bottom + 36, "Timeline of the step", data.summary, tuple(marks))


def legend_of(data: TimelineView) -> list[BarPart]:
    """Return the parts (forward, bubble, ...) that occur in the timeline `data`, for its legend."""
    return [p for p in PARTS if _in_use(data, p.css)]


def _in_use(data: TimelineView, part: str) -> bool:
    part = {"forward": "compute", "backward": "compute"}.get(part, part)
    shares = {p.part for p in data.parts if p.share >= 0.0005}
    return part in shares or (part == "overhead" and "offload" in shares)


def _row(data: TimelineView, row: RankTimeline, scale: Scale, y: float, bar: float) -> list[Mark]:
    """Return the marks of a rank's row. All spans of one part are one dashed line, as thick as the row."""
    found: dict[str, list[tuple[int, int]]] = {}
    for part, start_s, length_s in spans_of(data, row):
        low, high = round(scale.px(start_s)), round(scale.px(start_s + length_s))
        runs = found.setdefault(part, [])
        if high <= low:
            continue
        if runs and runs[-1][1] >= low:
            runs[-1] = (runs[-1][0], max(high, runs[-1][1]))
        else:
            runs.append((low, high))
    order = ("forward", "backward", "recompute", "exposed_comm", "optimizer", "overhead")
    return [Path(_path(found[part], y + bar / 2), f"row{bar:g} {part}-row") for part in order if found.get(part)]


def _path(runs: list[tuple[int, int]], y: float) -> str:
    commands, at = [f"M0 {y:g}"], 0
    for low, high in runs:
        commands.append(f"m{low - at} 0h{high - low}")
        at = high
    return "".join(commands)


def spans_of(data: TimelineView, row: RankTimeline) -> list[tuple[str, float, float]]:
    """Return (part, start in s, length in s) of everything that a rank does, in order of time. `row` is the rank's row
    in `data`."""
    found: list[tuple[str, float, float]] = []
    for letter, stage, start_us, length_us in zip(row.actions, row.stage, row.start_us, row.length_us, strict=True):
        cost, at = data.costs[stage], start_us / US
        whole = length_us / US
        if letter == LETTERS["forward"]:
            pieces = [("exposed_comm", cost.exposed_forward_s), ("forward", whole - cost.exposed_forward_s)]
        elif letter == LETTERS["backward_weight"]:
            pieces = [("backward", whole)]
        else:
            rest = whole - cost.recompute_s - cost.exposed_backward_s
            pieces = [("recompute", cost.recompute_s), ("backward", rest), ("exposed_comm", cost.exposed_backward_s)]
        for part, length_s in pieces:
            found.append((part, at, length_s))
            at += length_s
    at = data.makespan_s
    for part, length_s in row.after_s.items():
        found.append(("overhead" if part == "offload" else part, at, length_s))
        at += length_s
    return found
