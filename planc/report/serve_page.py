"""The page of a serve plan, `planc.report.serve/1`: what fits beside the weights, and how they reach the generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from planc.compare.diff import machines_text, mesh_text
from planc.driver.serving import ServeExamined, transferred_weights
from planc.ir.serve_report import ServeReport, SyncFacts
from planc.ir.serving import ServePlan
from planc.picture.charts import Bar, BarPart, Limit, stacked_bars
from planc.picture.marks import Mark, Path, Picture, Rect, Text, clipped, text_px
from planc.picture.units import count, gib, seconds, size
from planc.report.data import Data, PageView
from planc.report.plan_page import Number
from planc.report.search_page import SearchVerdict
from planc.sharding.transfers import WeightTransfer
from planc.version import __version__

GIB = 2.0**30
SIDES: tuple[Literal["trainer", "generator"], ...] = ("trainer", "generator")
MOST_NODES = 6
"""Nodes that are drawn on each side; the others are one box."""


class NodeFlow(Data):
    """Bytes that the ranks of a node send or receive in one sync; `nodes` of them together in one box."""

    name: str
    side: Literal["trainer", "generator"]
    nodes: int
    far_bytes: float
    """Bytes to or from other nodes."""
    near_bytes: float
    """Bytes between ranks of the node itself."""


class SyncFlow(Data):
    """The bytes of one sync by node: those that are sent, at the left, and those that are received."""

    trainer: str
    generator: str
    senders: tuple[NodeFlow, ...]
    receivers: tuple[NodeFlow, ...]
    network: str
    """Names of the network levels; "" if no byte leaves its node."""
    link: str
    """Name of the link inside nodes."""
    seconds: float
    summary: str


class MemoryRow(Data):
    """A device's memory in GiB by part, in one turn or all the time."""

    name: str
    parts_gib: tuple[float, ...]


class HeldMemory(Data):
    """Memory of a device of the generator; `parts` are the names of `parts_gib`."""

    parts: tuple[str, ...]
    rows: tuple[MemoryRow, ...]
    capacity_gib: float
    summary: str


class TransferredTensor(Data):
    """The bytes of one parameter in a sync, over all its layers."""

    name: str
    tensors: int
    messages: int
    far_bytes: float
    near_bytes: float
    local_bytes: float


class ServePage(Data):
    """The content of a page about a serve plan."""

    format: Literal["planc.report.serve/1"] = "planc.report.serve/1"
    planc_version: str
    plan: str
    about: str
    verdict: SearchVerdict
    flow: SyncFlow
    memory: HeldMemory
    tensors: tuple[TransferredTensor, ...]
    text: str
    """The serve plan's text."""
    command: str

    @property
    def title(self) -> str:
        """The title of the page: the plan and the answer."""
        return f"{self.plan}: {self.verdict.headline}"


def serve_page(examined: ServeExamined, command: str) -> ServePage:
    """Return the page of a serve plan whose layouts have no error. `command` is the command line that writes it."""
    report, serve, sides = examined.report, examined.serve, examined.sides
    assert serve is not None and sides is not None and report.sync is not None and examined.trainer is not None
    costed = examined.trainer.costed
    transferred = transferred_weights(serve, sides, costed.target if costed else None)
    where = "the trainer's devices" if serve.colocated else machines_text(serve.layout)
    return ServePage(
        planc_version=__version__,
        plan=serve.name,
        about=f"serves {report.trainer} on {where}, {report.replicas:,} replicas on mesh {mesh_text(serve.layout)}",
        verdict=_verdict(report, report.sync),
        flow=_flow(serve, report.sync, transferred),
        memory=_memory(report),
        tensors=tuple(
            TransferredTensor(
                name=c.name,
                tensors=c.tensors,
                messages=c.pieces,
                far_bytes=c.far_bytes,
                near_bytes=c.near_bytes,
                local_bytes=c.local_bytes,
            )
            for c in sorted(report.sync.classes, key=lambda c: -(c.far_bytes + c.near_bytes))
        ),
        text=next(iter(examined.sources.values())).text,
        command=command,
    )


def _verdict(report: ServeReport, sync: SyncFacts) -> SearchVerdict:
    memory = report.memory
    assert memory is not None
    fits = report.ok and memory.fits and (report.peaks is None or report.peaks.fits)
    requests = "" if memory.requests is None else f", {memory.requests:,} requests at once"
    headline = f"{'fits' if fits else 'does not fit'}, sync {seconds(sync.seconds)}"
    sentence = (
        f"{'It fits' if fits else 'It does not fit'}: the cache of a replica holds {memory.tokens:,} tokens{requests};"
        f" a sync of {size(sync.near_bytes + sync.far_bytes)} takes {seconds(sync.seconds)} of links."
    )
    bound = f"{sync.seconds / sync.bound_s:.2f} x the lower bound" if sync.bound_s else "nothing moves"
    if sync.program_s is not None:
        bound += f"; tensor by tensor, as published programs do it, about {seconds(sync.program_s[1])}"
    numbers = [
        Number(name="Sync", value=sync.seconds, unit="s", text=seconds(sync.seconds), of=bound),
        Number(
            name="Cache of a replica",
            value=memory.tokens,
            unit="tokens",
            text=count(memory.tokens),
            of=f"tokens, {gib(memory.cache / GIB)} GiB a device",
        ),
        Number(
            name="Weights of a device",
            value=memory.weights.total / GIB,
            unit="GiB",
            text=f"{gib(memory.weights.total / GIB)} GiB",
            of=f"of {gib(memory.usable / GIB)} GiB usable, as {report.weights}",
        ),
    ]
    if report.decode_s is not None:
        text, of = seconds(report.decode_s), "of every request, at best"
        numbers.append(Number(name="A token", value=report.decode_s, unit="s", text=text, of=of))
    return SearchVerdict(sentence=sentence, numbers=tuple(numbers), headline=headline)


def _flow(serve: ServePlan, sync: SyncFacts, transferred: WeightTransfer) -> SyncFlow:
    senders, receivers = list(_nodes(transferred, sends=True)), list(_nodes(transferred, sends=False))
    names = dict.fromkeys(c.levels[0].name for c in (serve.trainer.cluster, serve.layout.cluster) if c.levels)
    busiest = f"The busiest link is {sync.busiest}, with {size(sync.busiest_bytes)}."
    return SyncFlow(
        trainer=f"{mesh_text(serve.trainer)} on {machines_text(serve.trainer)}",
        generator=f"{mesh_text(serve.layout)} on {machines_text(serve.layout)}",
        senders=tuple(_together(senders)),
        receivers=tuple(_together(receivers)),
        network=", ".join(names) if sync.far_bytes else "",
        link=serve.layout.cluster.link.name,
        seconds=sync.seconds,
        summary=(
            f"{size(sync.far_bytes)} cross the network between nodes and {size(sync.near_bytes)} move inside nodes;"
            f" {size(sync.local_bytes)} are where they are needed. {busiest if sync.seconds else ''}"
        ).rstrip(),
    )


def _nodes(transferred: WeightTransfer, *, sends: bool) -> Iterator[NodeFlow]:
    """Yield the nodes that send, or those that receive, in the order of their ranks."""
    sums: dict[int, list[float]] = {}
    for rank, load in transferred.loads.items():
        side = transferred.sides[rank >= transferred.sides[1].first > 0]
        total = sums.setdefault(side.node(rank), [0.0, 0.0])
        for place, each in enumerate((load.far_out, load.near_out) if sends else (load.far_in, load.near_in)):
            total[place] += each
    apart = transferred.sides[1].first
    for first, (far, near) in sorted(sums.items()):
        if far or near:
            whose = "generator" if apart and first >= apart else "trainer"
            side = transferred.sides[whose == "generator"]
            number = (first - side.first) // side.per_node
            name = f"{whose if apart else ''} node {number}".strip()
            yield NodeFlow(name=name, side=whose, nodes=1, far_bytes=far, near_bytes=near)


def _together(found: Sequence[NodeFlow]) -> Iterator[NodeFlow]:
    """Yield the first nodes of each side, and its others as one."""
    for side in SIDES:
        own = [one for one in found if one.side == side]
        shown = own if len(own) <= MOST_NODES else own[: MOST_NODES - 1]
        yield from shown
        if rest := own[len(shown) :]:
            far, near = sum(one.far_bytes for one in rest), sum(one.near_bytes for one in rest)
            name = f"{len(rest):,} more {'' if rest[0].name.startswith('node') else side} nodes".replace("  ", " ")
            yield NodeFlow(name=name, side=side, nodes=len(rest), far_bytes=far, near_bytes=near)


def _memory(report: ServeReport) -> HeldMemory:
    memory, peaks = report.memory, report.peaks
    assert memory is not None
    own = (memory.weights.total, memory.activations, memory.other, memory.cache)
    rows = [MemoryRow(name="generator", parts_gib=(0.0, *(n / GIB for n in own)))]
    summary = f"The engine uses {gib(memory.usable / GIB)} of {gib(memory.capacity / GIB)} GiB of a device."
    if peaks is not None:
        awake = {"while training": peaks.training, "while serving": peaks.serving}
        rows = []
        for name, (trainer, generator) in awake.items():
            held = own if name == "while serving" else ()
            rest = generator - sum(held)
            parts = (trainer, *(held or (0.0, 0.0, 0.0, 0.0)))
            rows.append(MemoryRow(name=name, parts_gib=tuple(n / GIB for n in (*parts[:3], parts[3] + rest, parts[4]))))
        summary = f"Both sides take turns on devices of {gib(peaks.capacity / GIB)} GiB; what sleeps is elsewhere."
    return HeldMemory(
        parts=tuple(part.name for part in PARTS),
        rows=tuple(rows),
        capacity_gib=memory.capacity / GIB,
        summary=summary,
    )


PARTS = (
    BarPart("optimizer", "trainer"),
    BarPart("params", "weights"),
    BarPart("activations", "activations"),
    BarPart("comm_buffers", "other of the generator"),
    BarPart("grads", "cache"),
)
"""Parts of a device's memory in stacking order."""


def memory_picture(data: HeldMemory, width: float) -> Picture:
    """Return the bars of what a device holds."""
    rows = [Bar(row.name, row.parts_gib, f"{gib(sum(row.parts_gib))} GiB") for row in data.rows]
    return stacked_bars(
        rows,
        PARTS,
        title="What a device of the generator holds",
        summary=data.summary,
        unit="GiB",
        width=width,
        limit=Limit(data.capacity_gib, f"{gib(data.capacity_gib)} GiB of a device"),
    )


BAND_PX = 140.0
"""Height of all bands together where they meet, which is that of all bytes that move."""
BOX_PX, GAP_PX = 44.0, 12.0


def flow_picture(data: SyncFlow, width: float) -> Picture | None:
    """Return the nodes that send and those that receive, joined by bands whose widths are bytes, through the network
    and inside nodes; None if nothing moves."""
    if not data.senders:
        return None
    box = min(300.0, 0.36 * width)
    rows = max(len(data.senders), len(data.receivers))
    top, height = 44.0, rows * (BOX_PX + GAP_PX)
    far, near = (sum(getattr(one, kind) for one in data.senders) for kind in ("far_bytes", "near_bytes"))
    narrow = width < 500
    heads = [*SIDES] if narrow else [f"trainer: {data.trainer}", f"generator: {data.generator}"]
    line = 14 if text_px(" ".join(heads)) < 0.9 * width else 32
    marks: list[Mark] = [
        Text(0, 14, clipped(heads[0], width), "strong"),
        Text(width, line, clipped(heads[1], width), "strong", "end"),
    ]
    meet = top + (height - min(BAND_PX, height)) / 2
    px = min(BAND_PX, height) / (far + near)
    for sends, nodes in ((True, data.senders), (False, data.receivers)):
        y, at = top + (rows - len(nodes)) * (BOX_PX + GAP_PX) / 2, {"far": meet, "near": meet + far * px}
        for one in nodes:
            wide = {"far": one.far_bytes * px, "near": one.near_bytes * px}
            share = min(1.0, BOX_PX / (sum(wide.values()) or 1.0))
            edge = y + (BOX_PX - sum(wide.values()) * share) / 2
            message = _message_of(one, sends=sends, link=data.link)
            for kind, full in wide.items():
                if full:
                    ends = (box if sends else width - box, edge, full * share, width / 2, at[kind], full)
                    marks.append(Path(_band(*ends), f"{kind}-flow", message))
                edge, at[kind] = edge + full * share, at[kind] + full
            marks += _box(one, 0.0 if sends else width - box, y, box, message, short=narrow)
            y += BOX_PX + GAP_PX
    for sent, link, first, aside in ((far, data.network, meet, -8), (near, data.link, meet + far * px, 22)):
        if sent:
            wide = sent * px
            # A label is on its band if there is room: beside it, the bands of other nodes would cross it.
            y = first + (wide / 2 + 4 if wide > 20 else wide * (aside > 0) + aside)
            marks.append(Text(width / 2, y, size(sent) if narrow else f"{link} {size(sent)}", "strong halo", "middle"))
    return Picture(
        width, top + height + (20 if near else 8), "Bytes of a sync from node to node", data.summary, tuple(marks)
    )


def _message_of(one: NodeFlow, *, sends: bool, link: str) -> str:
    """Return the bytes of a node in words."""
    far = f"{'sends' if sends else 'receives'} {size(one.far_bytes)}" if one.far_bytes else ""
    near = f"{size(one.near_bytes)} over {link}" if one.near_bytes else ""
    return ", ".join(filter(None, (far, near)))


def _band(x1: float, y1: float, wide1: float, x2: float, y2: float, wide2: float) -> str:
    """Return the path of a band from a vertical edge of length `wide1` at (`x1`, `y1`) to one at (`x2`, `y2`)."""
    half = (x1 + x2) / 2
    there = f"M{x1:.1f} {y1:.1f}C{half:.1f} {y1:.1f} {half:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    low1, low2 = y1 + wide1, y2 + wide2
    back = f"L{x2:.1f} {low2:.1f}C{half:.1f} {low2:.1f} {half:.1f} {low1:.1f} {x1:.1f} {low1:.1f}Z"
    return there + back


def _box(one: NodeFlow, x: float, y: float, wide: float, message: str, *, short: bool) -> Iterator[Mark]:
    """Yield the box of a node, with its bytes; `short`: their sizes alone."""
    shown = " + ".join(map(size, filter(None, (one.far_bytes, one.near_bytes)))) if short else message
    yield Rect(x, y, wide, BOX_PX, "box", f"{one.name}: {message}")
    yield Text(x + 8, y + 18, clipped(one.name, wide - 16), "strong")
    yield Text(x + 8, y + 35, clipped(shown, (wide - 12) * 1.05), "small")


SERVE_VIEWS: tuple[PageView, ...] = (
    PageView("verdict", "Verdict"),
    PageView("flow", "From the trainer to the generator", flow_picture),
    PageView("memory", "What a device holds", memory_picture),
    PageView("tensors", "Bytes of a sync by parameter"),
    PageView("text", "The plan"),
    PageView("command", "This page again"),
)
"""The views of a serve plan's page in reading order."""
