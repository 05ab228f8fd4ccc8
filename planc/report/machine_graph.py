"""A picture of a machine's links: each mesh axis in its colour on the links that it uses, the busiest links thick."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import hypot

from planc.cost import CostedPlan
from planc.cost.routes.busy import seconds_of_arcs
from planc.diag.fast_dataclass import dataclass
from planc.graph import MachineLinks, machine_links
from planc.picture.charts import Part, legend
from planc.picture.marks import Circle, Mark, Path, Picture, Rect, Text, clipped
from planc.picture.units import seconds

MOST_CHIPS = 144
"""Chips in a picture at most; of larger machines whole nodes are drawn until there are so many."""
MOST_SWITCHES = 16
"""Switches of the outermost kind in a picture at most."""
COLOURS = 6
WIDTH, ROW, MARGIN = 920.0, 92.0, 46.0
ROWS = {"spine": 5, "leaf": 4, "host": 3, "socket": 3, "nic": 2, "switch": 1, "chip": 0, "die": 0}
WIDEST = 9.0
"""Width of the busiest link of a small machine (pixels)."""

Place = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class DrawnLink:
    """One link of the picture, with the seconds of a step in which the collectives over each axis send on it."""

    one: int
    other: int
    seconds: dict[str, float]

    @property
    def busy_s(self) -> float:
        """Seconds of all axes together."""
        return sum(self.seconds.values())


def machine_picture(links: MachineLinks, costed: CostedPlan | None = None) -> Picture:
    """The machine of `links`; with `costed`, a plan on it, each of its axes is on the links that it uses."""
    drawn = _drawn(links)
    cables = [i for i, c in enumerate(links.cables) if c.source in drawn and c.target in drawn]
    rows = [
        DrawnLink(one=links.cables[i].source, other=links.cables[i].target, seconds=one)
        for i, one in zip(cables, _seconds(costed, cables), strict=True)
    ]
    places, height = _on_grid(links, drawn) or _in_rows(links, drawn)
    axes = [*dict.fromkeys(axis for row in rows for axis in row.seconds)]
    marks, top = legend([Part(f"axis{i % COLOURS}", axis) for i, axis in enumerate(axes)], WIDTH)
    summary = _summary(links, rows, drawn)
    marks.append(Text(0, top + 8, summary, "small"))
    shift = top + 16
    at = {v: (x, y + shift) for v, (x, y) in places.items()}
    most = max((row.busy_s for row in rows), default=0.0)
    px = max(1.0, min(WIDEST, 300 / max(1, sum(links.vertices[v].device >= 0 for v in drawn)))) / most if most else 0.0
    for row in sorted(rows, key=lambda row: row.busy_s):
        marks += _line(links, row, at, axes, px)
    marks += [mark for v in drawn for mark in _point(links, v, at[v], len(drawn))]
    marks += _row_names(links, drawn, at)
    return Picture(WIDTH, height + shift + 8, f"Links of {links.name}", summary, (*marks,))


def _drawn(links: MachineLinks) -> list[int]:
    """The vertices of the picture: whole nodes in order of rank, the switches that they are on, and those above."""
    chips: list[int] = []
    units: dict[int, list[int]] = {}
    for v in links.devices:
        units.setdefault(links.vertices[v].unit, []).append(v)
    for members in units.values():
        if chips and len(chips) + len(members) > MOST_CHIPS:
            break
        chips += members[:MOST_CHIPS]
    chosen = {*chips}
    inside = {links.vertices[v].unit for v in chips} - {-1}
    whole = len(chips) == len(links.devices)
    crowded = {v.unit for i, v in enumerate(links.vertices) if v.device >= 0 and i not in chosen}
    near: dict[int, list[int]] = defaultdict(list)
    for c in links.cables:
        near[c.source].append(c.target)
        near[c.target].append(c.source)
    if whole:
        chosen.update(range(len(links.vertices)))
    else:
        chosen |= {
            i for i, v in enumerate(links.vertices)
            if v.device < 0 and v.unit in inside and (v.unit not in crowded or any(u in chosen for u in near[i]))
        }  # fmt: skip
    while True:
        more = {u for v in chosen for u in near[v] if links.vertices[u].device < 0 and links.vertices[u].unit < 0}
        if more <= chosen:
            break
        chosen |= more if len(more) <= 4 * MOST_CHIPS else {*sorted(more)[: 4 * MOST_CHIPS]}
        if len(chosen) > 8 * MOST_CHIPS:
            break
    below = {u for v in chosen if _row(links, v) < 4 for u in near[v]}
    leaves = {v for v in chosen if _row(links, v) == 4 and (whole or v in below)}
    spines = sorted(v for v in chosen if _row(links, v) == 5)[:MOST_SWITCHES]
    return sorted({v for v in chosen if _row(links, v) < 4} | {*sorted(leaves)[: 4 * MOST_SWITCHES], *spines})


def _row(links: MachineLinks, v: int) -> int:
    return ROWS[links.vertices[v].kind]


def _seconds(costed: CostedPlan | None, cables: Sequence[int]) -> list[dict[str, float]]:
    """For each cable the seconds of each axis: of the busier way."""
    if costed is None:
        return [{} for _ in cables]
    plan = costed.sharded.plan
    arcs = [2 * i + way for i in cables for way in (0, 1)]
    found: list[dict[str, float]] = [{} for _ in cables]
    for axes, each in seconds_of_arcs(plan, costed.timed.mine, arcs).items():
        name = "+".join(axes)
        for n, pair in enumerate(zip(each[::2], each[1::2], strict=True)):
            if max(pair) > 0:
                found[n][name] = max(pair)
    return found


def _in_rows(links: MachineLinks, drawn: Sequence[int]) -> tuple[dict[int, Place], float]:
    """Chips on a line in order of rank, switches inside of nodes below it, cards, leaves and spines above."""
    near: dict[int, list[int]] = defaultdict(list)
    shown = {*drawn}
    for c in links.cables:
        if c.source in shown and c.target in shown:
            near[c.source].append(c.target)
            near[c.target].append(c.source)
    rows: dict[int, list[int]] = defaultdict(list)
    for v in drawn:
        row = _row(links, v)
        only_chips = row == 1 and all(links.vertices[u].kind in ("chip", "die") for u in near[v])
        rows[-1 if only_chips else row].append(v)
    levels = sorted(rows)
    height = ROW * (len(levels) - 1) + 2 * MARGIN
    chips = sorted(rows[0], key=lambda v: links.vertices[v].device)
    x = {v: _spread(i, len(chips)) for i, v in enumerate(chips)}
    for level in sorted((n for n in levels if n), key=abs):
        wanted = {v: _middle([x[u] for u in near[v] if u in x]) for v in rows[level]}
        ordered = sorted(rows[level], key=lambda v: (wanted[v], v))
        x |= _apart([wanted[v] for v in ordered], ordered)
    y = {level: height - MARGIN - ROW * i for i, level in enumerate(levels)}
    return {v: (x[v], y[level]) for level in levels for v in rows[level]}, height


def _spread(i: int, count: int) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * ((i + 0.5) / count)


def _middle(places: Sequence[float]) -> float:
    return sum(places) / len(places) if places else WIDTH / 2


def _apart(wanted: Sequence[float], ordered: Sequence[int]) -> dict[int, float]:
    """Places near those wanted, in order, with a gap between neighbours."""
    gap = min(64.0, (WIDTH - 2 * MARGIN) / max(1, len(ordered)))
    found: list[float] = []
    for place in wanted:
        found.append(max(place, found[-1] + gap) if found else place)
    over = max(0.0, found[-1] - (WIDTH - MARGIN)) if found else 0.0
    found = [place - over for place in found]
    for i in range(len(found) - 2, -1, -1):
        found[i] = min(found[i], found[i + 1] - gap)
    centre = sum(wanted) / len(wanted) - sum(found) / len(found) if found else 0.0
    low, high = MARGIN - min(found, default=0.0), WIDTH - MARGIN - max(found, default=0.0)
    return {v: place + min(max(centre, low), high) for v, place in zip(ordered, found, strict=True)}


def _on_grid(links: MachineLinks, drawn: Sequence[int]) -> tuple[dict[int, Place], float] | None:
    """The chips of a torus by their coordinates, planes behind each other; None for other machines."""
    places = {v: _coordinates(links, v) for v in drawn}
    if not places or not all(places.values()):
        return None
    count = max(len(p) for p in places.values())
    lengths = [1 + max(p[d] for p in places.values()) for d in range(count)]
    planes, lines, across = ([1] * 3 + lengths)[-3:]
    step = min(150.0, (WIDTH - 2 * MARGIN) / (planes * across + 0.3 * lines))
    found = {}
    for v, place in places.items():
        z, y, x = ((0, 0, 0, *place))[-3:]
        off = 0.18 * step if links.vertices[v].device >= 0 and count and _is_switched(links) else 0.0
        found[v] = (
            MARGIN + step * (0.4 + x + z * (across + 0.25) + 0.22 * y) - off,
            MARGIN + ROW * 0.75 * y + 0.14 * step * x + off,
        )
    high = max(y for _, y in found.values())
    wide = max(x for x, _ in found.values())
    scale = min(1.0, (WIDTH - MARGIN) / wide)
    return {v: (x * scale, y) for v, (x, y) in found.items()}, high + MARGIN


def _is_switched(links: MachineLinks) -> bool:
    return not any(v.place for v in links.vertices)


def _coordinates(links: MachineLinks, v: int) -> tuple[int, ...]:
    """The coordinates of a vertex of a torus; empty elsewhere."""
    vertex = links.vertices[v]
    if vertex.place:
        return vertex.place
    if links.symmetry is None or any(d.exchange == "any" for d in links.symmetry.digits):
        return ()
    name, values = links.symmetry.addresses[v]
    return values[::-1] if name in ("switch", "chip") and min(values, default=-1) >= 0 else ()


def _row_names(links: MachineLinks, drawn: Sequence[int], at: Mapping[int, Place]) -> Iterator[Mark]:
    """The kind of the points in each row, at its left."""
    if any(_coordinates(links, v) for v in drawn[:1]):
        return
    rows: dict[float, list[str]] = defaultdict(list)
    for v in drawn:
        kind = links.vertices[v].kind
        if kind not in rows[at[v][1]]:
            rows[at[v][1]].append(kind)
    for y, kinds in rows.items():
        yield Text(0, y + 4, ", ".join(kinds), "small halo")


def _line(
    links: MachineLinks, row: DrawnLink, at: Mapping[int, Place], axes: Sequence[str], px: float
) -> Iterator[Mark]:
    """The lines of one link, side by side: one for each axis that sends over it."""
    (x1, y1), (x2, y2) = at[row.one], at[row.other]
    length = hypot(x2 - x1, y2 - y1) or 1.0
    across, along = (y1 - y2) / length, (x2 - x1) / length
    far = abs(y1 - y2) < 1 and abs(x1 - x2) > 70
    names = " to ".join(links.vertices[v].name for v in (row.one, row.other))
    if not row.seconds:
        yield Path(_path(x1, y1, x2, y2, far), "wire", names)
        return
    widths = {axis: max(1, round(s * px)) for axis, s in row.seconds.items()}
    side = -sum(widths.values()) / 2
    for axis, width in widths.items():
        side += width / 2
        dx, dy = across * side, along * side
        said = f"{names}: {axis} sends {seconds(row.seconds[axis])} a step"
        css = f"wire axis{axes.index(axis) % COLOURS}-line w{width}"
        yield Path(_path(x1 + dx, y1 + dy, x2 + dx, y2 + dy, far), css, said)
        side += width / 2


def _path(x1: float, y1: float, x2: float, y2: float, bent: bool) -> str:
    if not bent:
        return f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
    return f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {y1 - min(60.0, 0.2 * abs(x2 - x1)):.1f} {x2:.1f} {y2:.1f}"


def _point(links: MachineLinks, v: int, place: Place, count: int) -> Iterator[Mark]:
    """The mark of one vertex; its name where there is room."""
    (x, y), vertex = place, links.vertices[v]
    chip = vertex.kind in ("chip", "die")
    if chip:
        yield Circle(x, y, 7 if count < 100 else 3.5, "chip-point", vertex.name)
        if count < 100:
            yield Text(x, y + 3.5, str(vertex.device), "chip-number", "middle")
        return
    size = 6 if count < 100 else 4
    yield Rect(x - size, y - size, 2 * size, 2 * size, "box", vertex.name)
    if count <= 48 and not _coordinates(links, v):
        short = vertex.name.rpartition(".")[2]
        yield Text(x, y - 10, clipped(short, 62), "small halo", "middle")


def _summary(links: MachineLinks, rows: Sequence[DrawnLink], drawn: Sequence[int]) -> str:
    chips = sum(links.vertices[v].device >= 0 for v in drawn)
    part = f"{chips} of {len(links.devices):,} chips are drawn." if chips < len(links.devices) else f"{chips} chips."
    busiest = max(rows, key=lambda row: row.busy_s, default=None)
    if busiest is None or not busiest.busy_s:
        return part
    ends = " and ".join(links.vertices[v].name for v in (busiest.one, busiest.other))
    return f"{part} The busiest link joins {ends}: it sends for {seconds(busiest.busy_s)} of a step."


def picture_of(costed: CostedPlan) -> Picture:
    """The machine of `costed` with its axes on it."""
    return machine_picture(machine_links(costed.sharded.plan.cluster), costed)
