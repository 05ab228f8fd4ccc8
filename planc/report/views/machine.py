"""The machine view: which network levels (NVLink, rail, spine) each mesh axis spans, and the busiest level."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import log2, prod

from planc.costing.machine.collective_time import transfer_s
from planc.costing.machine.group import device_group
from planc.costing.machine.topology import torus_dims
from planc.ir.plan import Plan
from planc.picture.marks import Mark, Picture, Rect, StraightLine, Text, clipped, text_px
from planc.picture.units import rate, seconds
from planc.report.data import Data, PageSubject
from planc.report.views.traffic import Traffic

GATHERED_BYTES = 1e9
"""Bytes of the gather that measures an axis's bandwidth: large enough to make latency negligible."""


class MachineLevel(Data):
    """A level of the machine: it joins blocks of `inner` consecutive devices into blocks of `outer`. For a graph of
    links, the busiest link of an axis."""

    name: str
    what: str
    inner: int
    outer: int
    bytes_per_s: float
    """One-way bandwidth per device when all send at once."""
    time_s: float
    """Seconds per step of the slowest stage's collectives with this as their outermost level, or axis."""
    exposed_s: float


class MeshAxis(Data):
    """A mesh axis: its neighbours are `inner` device numbers apart, its groups span `outer`."""

    name: str
    size: int
    inner: int
    outer: int
    level: str
    view: str
    """The view that it belongs to, in words; "" for the mesh itself."""
    torus: str
    """The torus dims that it is mapped to; "" elsewhere."""


class MachineView(Data):
    """Machine view."""

    devices: int
    nodes: int
    chip: str
    levels: tuple[MachineLevel, ...]
    axes: tuple[MeshAxis, ...]
    busiest: str
    summary: str


def machine(subject: PageSubject, traffic: Traffic) -> MachineView:
    """Return the network levels (NVLink, rail, spine) of the machine of `subject` and the mesh axes on them. `traffic`
    determines the busiest level."""
    costed = subject.costed
    plan = costed.sharded.plan
    busy: dict[str, tuple[float, float]] = {}
    for a in traffic.axes:
        time_s, exposed_s = busy.get(a.level, (0.0, 0.0))
        busy[a.level] = time_s + a.time_s, exposed_s + a.exposed_s
    own = plan.cluster.own_graph is not None and plan.mesh.devices > 1
    levels = tuple(_busiest_links(plan, traffic) if own else _levels(plan, busy))
    busiest = max(levels, key=lambda v: v.time_s, default=None)
    torus = _torus(plan)
    axes = tuple(
        MeshAxis(
            name=a.name,
            size=a.size,
            inner=a.stride,
            outer=a.stride * a.size,
            level=a.level if a.size > 1 else "",
            view=a.view or "",
            torus=torus.get(a.name, ""),
        )
        for a in costed.axes
    )
    inside = [a for a in axes if a.size > 1]
    where = "; ".join(f"{a.name} {a.size} on {a.level}{f' ({a.torus})' if a.torus else ''}" for a in reversed(inside))
    busy_text = (
        f"The busiest {'link' if own else 'level'} is {busiest.name}: {seconds(busiest.time_s)} of transfers a step,"
        f" {seconds(busiest.exposed_s)} of them exposed."
        if busiest and busiest.time_s
        else "Nothing is sent."
    )
    crossed = "the busiest link that its groups use" if own else "the outermost level that its groups cross"
    return MachineView(
        devices=plan.mesh.devices,
        nodes=plan.cluster.count,
        chip=plan.cluster.chip.name,
        levels=levels,
        axes=axes,
        busiest=busiest.name if busiest else "",
        summary=f"{f'From the innermost axis out, each with {crossed}: {where}. ' if inside else ''}{busy_text}",
    )


def _busiest_links(plan: Plan, traffic: Traffic) -> Iterator[MachineLevel]:
    """Yield for each mesh axis the busiest link of its groups, on a graph of links. Its bandwidth is that of a device
    in an all-gather over the axis, its seconds those of all groups whose outermost axis this is."""
    busy: dict[str, list[tuple[float, float]]] = {}
    for a in traffic.axes:
        busy.setdefault(_outermost(plan, a.axis.split("+")), []).append((a.time_s, a.exposed_s))
    for axis in sorted((a for a in plan.mesh.axes if a.size > 1), key=lambda a: a.stride):
        group = device_group(plan.mesh, plan.cluster, (axis.name,))
        gathered_s = transfer_s("all_gather", GATHERED_BYTES, group)
        mine = busy.get(axis.name, [])
        yield MachineLevel(
            name=group.level,
            what=f"busiest link of {axis.name}",
            inner=axis.stride,
            outer=axis.stride * axis.size,
            bytes_per_s=GATHERED_BYTES * (1 - 1 / axis.size) / gathered_s,
            time_s=sum(time_s for time_s, _ in mine),
            exposed_s=sum(exposed_s for _, exposed_s in mine),
        )


def _outermost(plan: Plan, names: Iterable[str]) -> str:
    """Return the outermost mesh axis that a group over the axes `names` spans. An axis of a view (another factorization
    of some mesh axes) spans the axes that the view factorizes."""
    covered = {name: view.of for view in plan.mesh.views for name in view.names}
    return max((m for name in names for m in covered.get(name, (name,))), key=lambda m: plan.mesh.axis(m).stride)


def _levels(plan: Plan, busy: dict[str, tuple[float, float]]) -> list[MachineLevel]:
    cluster, chip = plan.cluster, plan.cluster.chip
    total = plan.mesh.devices
    found: list[MachineLevel] = []

    def add(name: str, what: str, outer: int, bytes_per_s: float) -> None:
        inner = found[-1].outer if found else 1
        time_s, exposed_s = busy.get(name, (0.0, 0.0))
        if outer > inner or time_s:
            found.append(
                MachineLevel(
                    name=name,
                    what=what,
                    inner=inner,
                    outer=min(outer, total),
                    bytes_per_s=bytes_per_s,
                    time_s=time_s,
                    exposed_s=exposed_s,
                )
            )

    if chip.devices > 1:
        add(chip.name, "chip", chip.devices, chip.die_bandwidth_bytes_per_s)
    shape = "x".join(map(str, cluster.shape))
    node = f"torus {shape}" if cluster.is_torus else "node"
    add(cluster.link.name, node, cluster.devices_per_node, cluster.link.bandwidth_bytes_per_s / chip.devices)
    outer = cluster.devices_per_node
    for i, level in enumerate(cluster.levels):
        outer = total if i == len(cluster.levels) - 1 else outer * level.width
        each = cluster.hosts_per_node * level.bandwidth_bytes_per_s / level.oversubscription
        add(level.name, "network", min(outer, total), each / min(cluster.devices_per_node, total))
    return found


def _torus(plan: Plan) -> dict[str, str]:
    if not plan.cluster.is_torus:
        return {}
    placed = torus_dims(plan.mesh, plan.cluster)
    for view in plan.mesh.views:
        placed |= {k: v for k, v in torus_dims(plan.mesh, plan.cluster, view.names).items() if k in view.names}
    return {
        name: " x ".join(f"{'xyz'[dim] if dim < 3 else dim} of {ring.size}" for dim, ring in rings if ring.size > 1)
        for name, rings in placed.items()
    }


def picture(data: MachineView, width: float) -> Picture:
    """Return a picture of device numbers on a scale of powers of two, `width` pixels wide: the ranges of the machine's
    levels above, and those of the axes of `data` below."""
    narrow = width < 500
    left = 62.0 if narrow else 84.0
    reach = log2(max(data.devices, prod([2])))

    def px(device: float) -> float:
        return left + log2(max(device, 1)) / reach * (width - left - 16)

    views = list(dict.fromkeys(a.view for a in data.axes))
    rows = [("machine", [(v.name, v.inner, v.outer, f"{v.name}|{rate(v.bytes_per_s, 'B')}") for v in data.levels])]
    for view in views:
        name = "mesh" if not view else "view"
        axes = [a for a in data.axes if a.view == view and a.size > 1]
        rows.append((name, [(a.name, a.inner, a.outer, f"{a.name} {a.size}") for a in axes]))
    tall = 38.0
    bottom = 6 + len(rows) * (tall + 12)
    marks: list[Mark] = []
    for power in range(round(reach) + 1):
        x = px(2**power)
        marks.append(StraightLine(x, 2, x, bottom, "grid"))
        every = 3 if reach > 10 or narrow else 1
        if power == round(reach) or (power % every == 0 and round(reach) - power >= every):
            marks.append(Text(x, bottom + 14, f"{2**power:,}", "small", "middle"))
    marks.append(Text(width - 16, bottom + 30, "neighbouring devices in a block (powers of two)", "small", "end"))
    for at, (name, stretches) in enumerate(rows):
        y = 6 + at * (tall + 12)
        marks.append(Text(0, y + tall / 2 + 4, name, "strong"))
        for key, inner, outer, text in stretches:
            hot = at == 0 and key == data.busiest
            marks += _stretch(px(inner), px(outer), y, tall, text, hot=hot, level=at == 0)
    return Picture(width, bottom + 36, "Where the mesh axes lie in the machine", data.summary, tuple(marks))


def _stretch(start: float, end: float, y: float, tall: float, text: str, *, hot: bool, level: bool) -> list[Mark]:
    css = "hot" if hot else "box" if level else "light"
    lines = text.split("|")
    marks: list[Mark] = [Rect(start + 1, y, max(end - start - 2, 2), tall, css, text.replace("|", ", "))]
    room = end - start - 8
    if room < 14:
        return marks
    middle = (start + end) / 2
    shown = [line for line in lines if text_px(line) <= room] if len(lines) > 1 else lines
    if not shown:
        shown = [clipped(lines[0], room)]
    for i, line in enumerate(shown):
        y_text = y + tall / 2 + 4 + (i - (len(shown) - 1) / 2) * 15
        marks.append(
            Text(middle, y_text, clipped(line, room), "inside" if hot else "strong" if i == 0 else "small", "middle")
        )
    return marks
