"""The page of a search, `planc.report.search/1`: the best layouts, time against memory, and why other meshes are not
among them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Literal

from planc.checks import check_plan
from planc.costing.costed import cost_plan
from planc.diag.errors import PlanError
from planc.lowering import backend_of
from planc.picture.charts import Bar, stacked_bars
from planc.picture.marks import Circle, Mark, Picture, StraightLine, Text
from planc.picture.marks import Path as Curve
from planc.picture.scales import Scale, tick_text
from planc.picture.units import gib, percent, seconds
from planc.report.data import Data, PageView
from planc.report.diff_page import StepParts
from planc.report.parts import STEP_PARTS
from planc.report.plan_page import Number, run_numbers, run_sentence
from planc.searching import Candidate, Found
from planc.searching.lower_bounds import Bounds
from planc.searching.space import Point, Space
from planc.sharding.propagate import propagate
from planc.version import __version__

LABEL_PX = 56
"""Width of the label of several ranks: points nearer to each other share one."""
MOST_MESHES = 24
"""Number of rejected meshes that are costed; with more, a sample spread over the space."""


class Layout(Data):
    """A layout that was costed."""

    rank: int
    """Rank among the best; 0 for a layout that is only on the Pareto front."""
    label: str
    time_s: float
    step: StepParts
    mfu: float
    memory_gib: float
    why: str
    text: str
    """The plan file."""


class OtherMesh(Data):
    """A mesh that is not among the best, with the best layout's other choices, and the reason."""

    mesh: str
    reason: Literal["rule", "target", "memory", "slower"]
    why: str
    time_s: float | None
    memory_gib: float | None


class SearchVerdict(Data):
    """One sentence and four numbers."""

    sentence: str
    numbers: tuple[Number, ...]
    headline: str


class Front(Data):
    """Time against memory: the best layouts, the Pareto front, and rejected meshes that fit."""

    best: tuple[Layout, ...]
    front: tuple[Layout, ...]
    others: tuple[OtherMesh, ...]
    room_gib: float
    summary: str


class BestSteps(Data):
    """Parts of the step of each of the best layouts."""

    best: tuple[Layout, ...]
    summary: str


class Rejected(Data):
    """Meshes that were rejected."""

    meshes: tuple[OtherMesh, ...]
    of: int
    """Number of meshes in the space."""
    summary: str


class SearchPage(Data):
    """The content of a page about a search."""

    format: Literal["planc.report.search/1"] = "planc.report.search/1"
    planc_version: str
    file: str
    target: str | None
    verdict: SearchVerdict
    pareto: Front | None
    steps: BestSteps | None
    rejected: Rejected
    text: str
    """The file with its free values."""
    command: str

    @property
    def title(self) -> str:
        """The title of the page: the file and the best layout."""
        return f"{self.file}: {self.verdict.headline}"


def search_page(
    source: Path, given: dict[str, int], most_sequences: int | None, found: Found, command: str
) -> SearchPage:
    """Return the page of a search.

    Args:
        source: the plan file that was searched.
        given: values that replace those of its `let` sentences, by name.
        most_sequences: the largest batch (sequences) that the search may use; None if the plan gives the batch.
        found: the search's result.
        command: the command line that writes the page, shown on it.
    """
    space = Space(source, given, most_sequences)
    if found.target is not None and found.target in space.on_targets:
        space = Space(source, given, most_sequences, found.target)
    best = tuple(_layout(i, c) for i, c in enumerate(found.best, 1))
    known = {layout.text: layout.rank for layout in best}
    front = tuple(_layout(known.get(c.text, 0), c) for c in found.pareto)
    meshes = tuple(_rejected(space, found))
    return SearchPage(
        planc_version=__version__,
        file=source.name,
        target=found.target,
        verdict=_verdict(source.name, found),
        pareto=_front(best, front, meshes, found.room_gib) if best else None,
        steps=BestSteps(best=best, summary=_steps_message(best, found.equivalent)) if best else None,
        rejected=Rejected(meshes=meshes, of=space.meshes, summary=_rejected_message(meshes, found)),
        text=space.text,
        command=command,
    )


def _layout(rank: int, c: Candidate) -> Layout:
    return Layout(
        rank=rank,
        label=c.row or "the plan itself: nothing is free",
        time_s=c.time_s,
        step=StepParts(**{name: getattr(c.step, name) for name in StepParts.model_fields}),
        mfu=c.step.mfu,
        memory_gib=c.memory_gib,
        why=c.why,
        text=c.text,
    )


def _verdict(file: str, found: Found) -> SearchVerdict:
    decided = (
        f"{found.decided:,} layouts {'met' if found.cut_short else 'decided'}, {found.fully_costed:,} of them costed"
    )
    if not found.best:
        near = found.nearest_miss
        least = f" The least that one needs is {gib(near.memory_gib)} GiB: {near.label}." if near else ""
        least += f" {found.enough.text.capitalize()}." if found.enough else ""
        sentence = f"{found.none_fits.capitalize()} {gib(found.room_gib)} GiB, of {file}; {decided}.{least}"
        return SearchVerdict(sentence=sentence, numbers=(), headline=found.none_fits)
    first = found.best[0]
    tokens = first.step.tokens_per_s_per_device
    numbers = (
        Number(
            name="Time of a step", value=first.time_s, unit="s", text=seconds(first.time_s), of="of the fastest layout"
        ),
        Number(
            name="Memory of the fullest device",
            value=first.memory_gib,
            unit="GiB",
            text=f"{gib(first.memory_gib)} GiB",
            of=f"of {gib(found.room_gib)} GiB",
        ),
        Number(
            name="MFU",
            value=first.step.mfu,
            unit="share",
            text=percent(first.step.mfu),
            of=f"of {first.step.peak} a device; {tokens:,.0f} tokens/s",
        ),
        Number(
            name="Layouts decided",
            value=found.decided,
            unit="",
            text=f"{found.decided:,}",
            of=f"{found.fully_costed:,} costed in {seconds(found.seconds)}",
        ),
    )
    of_peak = f"{percent(first.step.mfu)} of {first.step.peak}"
    sentence = (
        f"The fastest layout that fits: {first.label or 'the plan itself'}. A step takes {seconds(first.time_s)} at"
        f" {of_peak}, with {gib(first.memory_gib)} of {gib(found.room_gib)} GiB; {decided}."
    )
    headline = f"{seconds(first.time_s)} a step, {gib(first.memory_gib)} GiB, MFU {of_peak}"
    return SearchVerdict(
        sentence=sentence + run_sentence(first.run), numbers=(*numbers, *run_numbers(first.run)), headline=headline
    )


def _front(
    best: tuple[Layout, ...], front: tuple[Layout, ...], meshes: tuple[OtherMesh, ...], room_gib: float
) -> Front:
    leanest = min(front, key=lambda c: c.memory_gib, default=None)
    said = f"{len(front)} layouts near the fastest are beaten by none in time and memory."
    if leanest is not None and leanest.memory_gib < best[0].memory_gib:
        more = leanest.time_s / best[0].time_s - 1
        said += f" The leanest needs {gib(leanest.memory_gib)} GiB for {percent(more)} more time."
    return Front(
        best=best,
        front=front,
        others=tuple(m for m in meshes if m.reason == "slower"),
        room_gib=room_gib,
        summary=said,
    )


def _steps_message(best: tuple[Layout, ...], equivalent: int) -> str:
    if len(best) == 1:
        return "One layout was asked for or fits."
    within = f"The best {len(best)} layouts lie within {percent(best[-1].time_s / best[0].time_s - 1)} of the fastest"
    return within + (f"; the first {equivalent} cannot be told apart." if equivalent > 1 else ".")


# Meshes that are not among the best.


def _rejected(space: Space, found: Found) -> list[OtherMesh]:
    """Return meshes that are not in the result, evenly spread over the space. Batch, pipeline and the like are those of
    the best layout."""
    taken = {(c.point.sizes, c.point.order) for c in (*found.best, *found.pareto)}
    every = [laid for laid in _some(space) if laid not in taken]
    chosen = every[:: -(-len(every) // MOST_MESHES) or 1]
    bounds = Bounds(space)
    return [_mesh(space, bounds, sizes, order, found) for sizes, order in chosen]


def _some(space: Space) -> list[tuple[tuple[int, ...], int]]:
    """Return the first 20,000 meshes of the space, as (axis sizes, index of the axis order)."""
    return list(islice(space.laid(), 20_000))


def _mesh(space: Space, bounds: Bounds, sizes: tuple[int, ...], order: int, found: Found) -> OtherMesh:
    text = " > ".join(f"{name} {axis.size}" for name, axis in space.mesh(sizes, order).every.items())
    made = _point(space, bounds, sizes, order, found)
    if isinstance(made, str):
        return OtherMesh(mesh=text, reason="rule", why=made, time_s=None, memory_gib=None)
    try:
        checked = check_plan(space.plan_of(made))
    except PlanError as error:
        first = error.diagnostics[0]
        return OtherMesh(mesh=text, reason="rule", why=f"{first.code}: {first.message}", time_s=None, memory_gib=None)
    try:
        costed = cost_plan(propagate(checked), backend=backend_of(found.target))
    except PlanError as error:
        first = error.diagnostics[0]
        return OtherMesh(mesh=text, reason="target", why=f"{first.code}: {first.message}", time_s=None, memory_gib=None)
    used, time_s = costed.memory.per_device_gib.total, costed.step.time_s
    if used > found.room_gib:
        why = f"{gib(used)} GiB, {gib(used - found.room_gib)} too much, of stage {costed.memory.worst.stage}"
        return OtherMesh(mesh=text, reason="memory", why=why, time_s=time_s, memory_gib=used)
    why = f"{seconds(time_s)} a step"
    if found.best:
        why += (
            f", {percent(time_s / found.best[0].time_s - 1)} more than the fastest; bound by {costed.limits.bound_by}"
        )
    return OtherMesh(mesh=text, reason="slower", why=why, time_s=time_s, memory_gib=used)


def _point(space: Space, bounds: Bounds, sizes: tuple[int, ...], order: int, found: Found) -> Point | str:
    """Return the layout on this mesh whose batch, pipeline and the like are those of the best layout, or a message why
    there is none."""
    like = found.best[0].point if found.best else None
    variant = like.variant if like else 0
    data_parallel = bounds.data_parallel(variant, sizes)
    batches = space.batches(data_parallel)
    if not batches:
        return f"the batch does not divide over {data_parallel:,} data-parallel ranks"
    pipelines = space.pipelines(bounds.ranks(sizes))
    if not pipelines:
        return f"the layers do not reach for {bounds.ranks(sizes)} pipeline ranks"
    batch = next((b for b in batches if like and b[1] == like.microbatch), batches[0])
    wanted = like.pipeline.text if like and like.pipeline else ""
    pipeline = next((p for p in pipelines if p is not None and p.text == wanted), pipelines[0])
    return Point(variant, sizes, *batch, pipeline, order)


def _rejected_message(meshes: tuple[OtherMesh, ...], found: Found) -> str:
    if not meshes:
        return "No other mesh is in the space."
    return f"{found.meshes_text}. Below, {len(meshes)} of the others with the best layout's other choices."


# Pictures.


def pareto_picture(data: Front, width: float) -> Picture:
    """Return a scatter plot of step time against memory for the layouts in `data`, `width` pixels wide."""
    points = [(c.time_s, c.memory_gib) for c in (*data.best, *data.front)]
    points += [(m.time_s, m.memory_gib) for m in data.others if m.time_s is not None and m.memory_gib is not None]
    left, top, bottom = 44.0, 40.0, 300.0
    low, high = min(t for t, _ in points), max(t for t, _ in points)
    least, most = min(g for _, g in points), max(data.room_gib, *(g for _, g in points))
    pad = 0.06 * (high - low) or 0.1 * high
    across = Scale(low - pad, high + pad, left, width - 12)
    up = Scale(max(0.0, least - 0.3 * (most - least)), most, bottom, top)
    marks: list[Mark] = []
    for tick in up.ticks(5):
        marks += [
            StraightLine(left, up.px(tick), width - 12, up.px(tick), "grid"),
            Text(left - 6, up.px(tick) + 4, tick_text(tick), "small", "end"),
        ]
    for tick in across.ticks(7 if width > 500 else 4):
        marks.append(Text(across.px(tick), bottom + 16, tick_text(tick), "small", "middle"))
    y = up.px(data.room_gib)
    marks += [
        Text(0, 14, "GiB of the fullest device", "small"),
        Text(width - 12, bottom + 32, "seconds of a step", "small", "end"),
        StraightLine(left, y, width - 12, y, "limit"),
        Text(width - 12, y - 5, f"{gib(data.room_gib)} GiB", "limit-text halo", "end"),
    ]
    for m in data.others:
        if m.time_s is not None and m.memory_gib is not None:
            marks.append(Circle(across.px(m.time_s), up.px(m.memory_gib), 4, "quiet", f"{m.mesh}: {m.why}"))
    line = "L".join(f"{across.px(c.time_s):.1f} {up.px(c.memory_gib):.1f}" for c in data.front)
    marks.append(Curve(f"M{line}", "front"))
    marks += _points(data, across, up)
    return Picture(width, bottom + 38, "Time against memory", data.summary, tuple(marks))


def _points(data: Front, across: Scale, up: Scale) -> list[Mark]:
    """Return a point for each layout. Points that are near each other share one label, on the right of all."""
    marks: list[Mark] = []
    places: dict[tuple[float, float], list[tuple[int, float]]] = {}
    for c in {c.text: c for c in (*data.front, *data.best)}.values():
        x, y = across.px(c.time_s), up.px(c.memory_gib)
        marks.append(Circle(x, y, 5, "accent", f"{c.label}: {seconds(c.time_s)}, {gib(c.memory_gib)} GiB"))
        near = next((at for at in places if abs(at[0] - x) < LABEL_PX and abs(at[1] - y) < 16), (x, y))
        places.setdefault(near, []).extend([(c.rank, x)] if c.rank else [])
    for (_, y), ranked in places.items():
        if ranked:
            foot = y + 4 if y - 12 > up.px(data.room_gib) else y + 16
            right = max(x for _, x in ranked)
            marks.append(Text(right + 9, foot, _ranks_text(sorted(rank for rank, _ in ranked)), "strong halo"))
    return marks


def _ranks_text(ranks: list[int]) -> str:
    whole = len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]} to {ranks[-1]}" if whole else ", ".join(map(str, ranks))


def steps_picture(data: BestSteps, width: float) -> Picture:
    """Return stacked bars of the step of each layout in `data`, `width` pixels wide."""
    rows = [
        Bar(f"{c.rank}", c.step.values, f"{seconds(c.time_s)}, {gib(c.memory_gib)} GiB", strong=c.rank == 1)
        for c in data.best
    ]
    title = "Steps of the best layouts"
    return stacked_bars(rows, STEP_PARTS, title=title, summary=data.summary, unit="seconds", width=width)


SEARCH_VIEWS: tuple[PageView, ...] = (
    PageView("verdict", "Verdict"),
    PageView("pareto", "Time against memory", pareto_picture),
    PageView("steps", "The best layouts", steps_picture),
    PageView("rejected", "Why other meshes were rejected"),
    PageView("text", "What was searched"),
    PageView("command", "This page again"),
)
"""The views of a page of a search."""
