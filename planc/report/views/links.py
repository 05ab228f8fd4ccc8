"""The link view: a drawing of the machine's links. The colour shows the mesh axes that use a link, the thickness how
busy it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import hypot

from planc.costing import CostedPlan
from planc.costing.routes.busy import seconds_of_arcs
from planc.graph import MachineLinks, machine_links
from planc.picture.charts import BarPart, legend
from planc.picture.marks import Circle, Mark, Path, Picture, Rect, Text, clipped
from planc.picture.units import seconds
from planc.report.data import Data, PageSubject

MOST_CHIPS = 144
"""Number of chips that are drawn; of larger machines, whole nodes up to this number."""
MOST_ON_PHONE = 24
"""MOST_CHIPS on a narrow screen."""
MOST_SWITCHES = 16
"""Number of switches of the outermost kind in a picture."""
COLOURS = 6
ROW, MARGIN = 92.0, 46.0
ROWS = {"spine": 5, "leaf": 4, "host": 3, "socket": 3, "nic": 2, "switch": 1, "chip": 0, "die": 0}
WIDEST = 9.0
"""Width (pixels) of the busiest link of a small machine."""
BUSIEST = 8
"""Number of links that a page lists."""

Place = tuple[float, float]


class DrawnPoint(Data):
    """A chip, card, switch or host of the machine."""

    name: str
    kind: str
    device: int
    """The number of a chip; -1 for other points."""
    place: tuple[int, ...]
    """Its coordinates in a torus; () elsewhere."""
    beside: bool
    """True for a chip that is drawn next to the switch at the same coordinates."""
    on_phone: bool
    """True if it is also drawn on a narrow screen."""


class DrawnLink(Data):
    """One link between two of the points, by their indices, with the seconds of a step that the collectives of each
    axis occupy it, in the busier direction."""

    one: int
    other: int
    seconds: dict[str, float]

    @property
    def busy_s(self) -> float:
        """Seconds of a step in which the link is busy, for all axes together."""
        return sum(self.seconds.values())


class Links(Data):
    """The machine's links; only those of its first nodes if it is large."""

    machine: str
    chips: int
    """Number of chips of the machine."""
    points: tuple[DrawnPoint, ...]
    cables: tuple[DrawnLink, ...]
    axes: tuple[str, ...]
    """The groups of axes that communicate, one colour each."""
    busiest: tuple[int, ...]
    """Indices of the busiest links, in descending order."""
    summary: str


def links(subject: PageSubject) -> Links | None:
    """Return the links of the machine of `subject` and the axes that use them; None if the machine is not a graph of
    links."""
    cluster = subject.costed.sharded.plan.cluster
    return None if cluster.own_graph is None else links_of(machine_links(cluster), subject.costed)


def links_of(machine: MachineLinks, costed: CostedPlan | None = None) -> Links:
    """Return the links of `machine`. With `costed`, a plan on this machine, each link has the seconds that each axis
    uses it."""
    drawn, few = _drawn(machine, MOST_CHIPS), {*_drawn(machine, MOST_ON_PHONE)}
    number = {v: i for i, v in enumerate(drawn)}
    on_switches = not any(v.place for v in machine.vertices)
    points = tuple(
        DrawnPoint(
            name=machine.vertices[v].name,
            kind=machine.vertices[v].kind,
            device=machine.vertices[v].device,
            place=_coordinates(machine, v),
            beside=on_switches and machine.vertices[v].device >= 0,
            on_phone=v in few,
        )
        for v in drawn
    )
    kept = [i for i, c in enumerate(machine.cables) if c.source in number and c.target in number]
    ends = [(number[machine.cables[i].source], number[machine.cables[i].target]) for i in kept]
    cables = tuple(
        DrawnLink(one=one, other=other, seconds=each)
        for (one, other), each in zip(ends, _seconds(costed, kept), strict=True)
    )
    busiest = sorted((i for i, c in enumerate(cables) if c.seconds), key=lambda i: -cables[i].busy_s)[:BUSIEST]
    return Links(
        machine=machine.name,
        chips=machine.chips,
        points=points,
        cables=cables,
        axes=tuple(dict.fromkeys(axis for cable in cables for axis in cable.seconds)),
        busiest=tuple(busiest),
        summary=_summary(machine, points, cables[busiest[0]] if busiest else None),
    )


def picture(data: Links, width: float) -> Picture:
    """Return a drawing of the points and links of `data`, `width` pixels wide: in rows by kind, or on a grid for a
    torus."""
    phone = width < 500
    drawn = [i for i, p in enumerate(data.points) if p.on_phone or not phone]
    shown = {*drawn}
    cables = [c for c in data.cables if c.one in shown and c.other in shown]
    places, height = _on_grid(data, drawn, width) or _in_rows(data, drawn, cables, width)
    marks, top = legend([BarPart(f"axis{i % COLOURS}", axis) for i, axis in enumerate(data.axes)], width)
    chips = sum(data.points[i].device >= 0 for i in drawn)
    if chips < data.chips:
        marks.append(Text(0, top + 8, f"{chips} of {data.chips:,} chips", "small"))
        top += 16
    at = {i: (x, y + top) for i, (x, y) in places.items()}
    most = max((cable.busy_s for cable in cables), default=0.0)
    px = max(1.0, min(WIDEST, width / 3 / max(1, chips))) / most if most else 0.0
    for cable in sorted(cables, key=lambda cable: cable.busy_s):
        marks += _line(data, cable, at, px)
    roomy, named = len(drawn) < 100 and 15 * chips <= width - 2 * MARGIN, 19 * len(drawn) <= width
    marks += [mark for i in drawn for mark in _point(data.points[i], at[i], roomy=roomy, named=named)]
    marks += _row_names(data, drawn, at)
    return Picture(width, height + top + 8, f"Links of {data.machine}", data.summary, (*marks,))


def _drawn(links: MachineLinks, most: int) -> list[int]:
    """Return the vertices to draw: at most `most` chips (whole nodes in rank order), and the cards and switches that
    they use."""
    chips: list[int] = []
    units: dict[int, list[int]] = {}
    for v in links.devices:
        units.setdefault(links.vertices[v].unit, []).append(v)
    for members in units.values():
        if chips and len(chips) + len(members) > most:
            break
        chips += members[:most]
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
    while len(chosen) <= 8 * most:
        above = {u for v in chosen for u in near[v] if links.vertices[u].device < 0 and links.vertices[u].unit < 0}
        if above <= chosen:
            break
        chosen.update(sorted(above - chosen)[: 4 * most])
    below = {u for v in chosen if _row(links, v) < 4 for u in near[v]}
    leaves = {v for v in chosen if _row(links, v) == 4 and (whole or v in below)}
    spines = sorted(v for v in chosen if _row(links, v) == 5)[:MOST_SWITCHES]
    return sorted({v for v in chosen if _row(links, v) < 4} | {*sorted(leaves)[: 4 * MOST_SWITCHES], *spines})


def _row(links: MachineLinks, v: int) -> int:
    return ROWS[links.vertices[v].kind]


def _coordinates(links: MachineLinks, v: int) -> tuple[int, ...]:
    """Return the coordinates of a vertex in a torus; () in other machines."""
    vertex = links.vertices[v]
    if vertex.place:
        return vertex.place
    if links.symmetry is None or any(d.exchange == "any" for d in links.symmetry.digits):
        return ()
    name, values = links.symmetry.addresses[v]
    return values[::-1] if name in ("switch", "chip") and min(values, default=-1) >= 0 else ()


def _seconds(costed: CostedPlan | None, cables: Sequence[int]) -> list[dict[str, float]]:
    """Return for each of the links `cables` the seconds that each axis uses it, in the busier direction."""
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


def _summary(links: MachineLinks, points: Sequence[DrawnPoint], busiest: DrawnLink | None) -> str:
    chips = links.chips
    if busiest is None:
        return f"{chips:,} chips."
    drawn = " of the nodes that are drawn" if sum(point.device >= 0 for point in points) < chips else ""
    ends = " and ".join(points[i].name for i in (busiest.one, busiest.other))
    return f"{chips:,} chips. The busiest link{drawn} joins {ends}: it sends for {seconds(busiest.busy_s)} of a step."


# Places.


def _in_rows(
    data: Links, drawn: Sequence[int], cables: Sequence[DrawnLink], width: float
) -> tuple[dict[int, Place], float]:
    """Return the position of each point, and the height of the picture: one row of chips in rank order, switches inside
    nodes below, cards, leaves and spines above."""
    near: dict[int, list[int]] = defaultdict(list)
    for c in cables:
        near[c.one].append(c.other)
        near[c.other].append(c.one)
    rows: dict[int, list[int]] = defaultdict(list)
    for i in drawn:
        row = ROWS[data.points[i].kind]
        only_chips = row == 1 and all(data.points[u].kind in ("chip", "die") for u in near[i])
        rows[-1 if only_chips else row].append(i)
    levels = sorted(rows)
    height = ROW * (len(levels) - 1) + 2 * MARGIN
    chips = sorted(rows[0], key=lambda i: data.points[i].device)
    x = {i: MARGIN + (width - 2 * MARGIN) * ((n + 0.5) / len(chips)) for n, i in enumerate(chips)}
    for level in sorted((n for n in levels if n), key=abs):
        wanted = {i: _middle([x[u] for u in near[i] if u in x], width) for i in rows[level]}
        ordered = sorted(rows[level], key=lambda i: (wanted[i], i))
        x |= _apart([wanted[i] for i in ordered], ordered, width)
    y = {level: height - MARGIN - ROW * n for n, level in enumerate(levels)}
    return {i: (x[i], y[level]) for level in levels for i in rows[level]}, height


def _middle(places: Sequence[float], width: float) -> float:
    return sum(places) / len(places) if places else width / 2


def _apart(wanted: Sequence[float], ordered: Sequence[int], width: float) -> dict[int, float]:
    """Return positions near the `wanted` ones, in the same order, without overlap."""
    gap = min(64.0, (width - 2 * MARGIN) / max(1, len(ordered)))
    found: list[float] = []
    for place in wanted:
        found.append(max(place, found[-1] + gap) if found else place)
    over = max(0.0, found[-1] - (width - MARGIN)) if found else 0.0
    found = [place - over for place in found]
    for i in range(len(found) - 2, -1, -1):
        found[i] = min(found[i], found[i + 1] - gap)
    centre = sum(wanted) / len(wanted) - sum(found) / len(found) if found else 0.0
    low, high = MARGIN - min(found, default=0.0), width - MARGIN - max(found, default=0.0)
    return {i: place + min(max(centre, low), high) for i, place in zip(ordered, found, strict=True)}


def _on_grid(data: Links, drawn: Sequence[int], width: float) -> tuple[dict[int, Place], float] | None:
    """Return the position of each chip by its torus coordinates, with planes side by side, and the height of the
    picture; None for other machines."""
    places = {i: data.points[i].place for i in drawn}
    if not places or not all(places.values()):
        return None
    count = max(len(p) for p in places.values())
    lengths = [1 + max(p[d] for p in places.values()) for d in range(count)]
    planes, lines, across = ([1] * 3 + lengths)[-3:]
    step = min(150.0, (width - 2 * MARGIN) / (planes * across + 0.3 * lines))
    found = {}
    for i, place in places.items():
        z, y, x = ((0, 0, 0, *place))[-3:]
        off = 0.18 * step if data.points[i].beside else 0.0
        found[i] = (
            MARGIN + step * (0.4 + x + z * (across + 0.25) + 0.22 * y) - off,
            MARGIN + ROW * 0.75 * y + 0.14 * step * x + off,
        )
    high = max(y for _, y in found.values())
    wide = max(x for x, _ in found.values())
    scale = min(1.0, (width - MARGIN) / wide)
    return {i: (x * scale, y) for i, (x, y) in found.items()}, high + MARGIN


# Marks.


def _row_names(data: Links, drawn: Sequence[int], at: Mapping[int, Place]) -> Iterator[Mark]:
    if any(data.points[i].place for i in drawn[:1]):
        return
    rows: dict[float, list[str]] = defaultdict(list)
    for i in drawn:
        kind = data.points[i].kind
        if kind not in rows[at[i][1]]:
            rows[at[i][1]].append(kind)
    for y, kinds in rows.items():
        yield Text(0, y + 4, ", ".join(kinds), "small halo")


def _line(data: Links, cable: DrawnLink, at: Mapping[int, Place], px: float) -> Iterator[Mark]:
    """Yield the lines of one link, side by side: one per axis that uses it."""
    (x1, y1), (x2, y2) = at[cable.one], at[cable.other]
    length = hypot(x2 - x1, y2 - y1) or 1.0
    across, along = (y1 - y2) / length, (x2 - x1) / length
    far = abs(y1 - y2) < 1 and abs(x1 - x2) > 70
    names = " to ".join(data.points[i].name for i in (cable.one, cable.other))
    if not cable.seconds:
        yield Path(_path(x1, y1, x2, y2, far), "wire", names)
        return
    widths = {axis: max(1, round(s * px)) for axis, s in cable.seconds.items()}
    side = -sum(widths.values()) / 2
    for axis, width in widths.items():
        side += width / 2
        dx, dy = across * side, along * side
        said = f"{names}: {axis} sends {seconds(cable.seconds[axis])} a step"
        css = f"wire axis{data.axes.index(axis) % COLOURS}-line w{width}"
        yield Path(_path(x1 + dx, y1 + dy, x2 + dx, y2 + dy, far), css, said)
        side += width / 2


def _path(x1: float, y1: float, x2: float, y2: float, bent: bool) -> str:
    if not bent:
        return f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
    return f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {y1 - min(60.0, 0.2 * abs(x2 - x1)):.1f} {x2:.1f} {y2:.1f}"


def _point(point: DrawnPoint, place: Place, *, roomy: bool, named: bool) -> Iterator[Mark]:
    """Yield the mark of a point. If `roomy` it is larger, and a chip has its number; if `named`, a switch or card has
    its name."""
    x, y = place
    if point.kind in ("chip", "die"):
        yield Circle(x, y, 7 if roomy else 3.5, "chip-point", point.name)
        if roomy:
            yield Text(x, y + 3.5, str(point.device), "chip-number", "middle")
        return
    size = 6 if roomy else 4
    yield Rect(x - size, y - size, 2 * size, 2 * size, "box", point.name)
    if named and not point.place:
        short = point.name.rpartition(".")[2]
        yield Text(x, y - 10, clipped(short, 62), "small halo", "middle")
