"""Checks a graph that a hardware file writes: consistent numbers, no duplicate cables, a path between every two chips.

The language checks each sentence of a hardware file, to report where the mistake is. A compiled plan comes without its
hardware file, so the graph is checked as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, get_args

from planc.graph.links import MachineLinks, VertexKind
from planc.ir.hardware import GraphPart

KINDS = tuple(kind for kind in get_args(VertexKind) if kind != "die")
"""Kinds of points that are written by name."""
NUMBERS: dict[str, dict[str, int | None]] = {
    "rack": {"chips": None},
    "rail": {"nodes": None, "chips": None, "leaf": 0, "spines": 0, "uplinks": 1, "cards": 0},
    "fat_tree": {"nodes": None, "chips": None, "leaf": None, "spines": 0, "uplinks": 1, "cards": 0},
    "dragonfly": {"groups": None, "switches": None, "nodes": None, "chips": None, "uplinks": 1},
    "torus": {"wrap": 0},
}
"""Numbers of each kind of part, and what holds when one is left out; None: it is needed."""
MAY_BE_ZERO = ("spines", "wrap")
LINKS: dict[str, tuple[str, ...]] = {
    "rack": ("link",),
    "rail": ("link", "out", "up"),
    "fat_tree": ("link", "out", "up"),
    "dragonfly": ("link", "out", "local", "up"),
    "torus": ("link",),
}
"""Names of the links of each kind of part."""
MOST_STARTS = 64
"""Chips of which each is asked whether it reaches every other, where no network joins all."""


class Mistake(NamedTuple):
    """A mistake in a graph, with its diagnostic code. `points` are the names of the vertices concerned."""

    code: str
    message: str
    help: str = ""
    points: tuple[str, ...] = ()


def mistake_of_part(part: GraphPart) -> Mistake | None:
    """Return the first mistake in the numbers of `part` (a regular network), or None. The numbers must be complete."""
    n = part.numbers
    if "leaf" in n and n["nodes"] > n["leaf"] and not n["spines"]:
        return Mistake("E1414", f"{n['nodes']} nodes fill several leaves of {n['leaf']}, and no spine joins them")
    if "cards" in n and n["cards"] > n["chips"]:
        return Mistake("E1414", f"{n['cards']} cards for {n['chips']} chips: each chip has one at most")
    return None


def mistake_of_whole(links: MachineLinks) -> Mistake | None:
    """Return the first mistake in the graph `links`, or None: no chips, two cables between the same vertices, or two
    chips without a path.

    A machine that is one regular network has no such mistake by construction.
    """
    if links.symmetry is not None:
        return None
    if not links.devices:
        return Mistake("E1411", "the graph has no chips", "such as: points gpu0, gpu1 as chip")
    near: list[list[int]] = [[] for _ in links.vertices]
    seen: set[tuple[int, int]] = set()
    for c in links.cables:
        pair = min(c.source, c.target), max(c.source, c.target)
        if pair in seen:
            ends = tuple(links.vertices[i].name for i in pair)
            said = " and ".join(f"`{name}`" for name in ends)
            return Mistake("E1404", f"{said} are joined twice", "write one wire with `x 2`", ends)
        seen.add(pair)
        near[c.source].append(c.target)
        near[c.target].append(c.source)
    for v in links.devices:
        if not near[v]:
            name = links.vertices[v].name
            return Mistake("E1415", f"the chip `{name}` has no link", "", (name,))
    return _not_reached(links, near)


def _not_reached(links: MachineLinks, near: list[list[int]]) -> Mistake | None:
    """Return the mistake of two chips without a path, or None. A path may not lead through chips of other nodes."""
    pieces = _pieces(near, range(len(near)))
    first, vertices = links.devices[0], links.vertices
    lost = next((v for v in links.devices if pieces[v] != pieces[first]), None)
    if lost is not None:
        name = vertices[lost].name
        said = f"no way leads from `{vertices[first].name}` to `{name}`"
        return Mistake("E1401", said, "join the pieces by a wire", (name,))
    pair = _apart(links, near)
    if pair is None:
        return None
    one, other = (vertices[v].name for v in pair)
    said = f"every way from `{one}` to `{other}` leads through the chips of other nodes, and they pass nothing on"
    return Mistake("E1418", said, "join them by a switch, a card or a host", (other,))


def _apart(links: MachineLinks, near: list[list[int]]) -> tuple[int, int] | None:
    """Return two chips without a path; None if every two chips have one. A path leads over switches, over a direct
    link, or first to a chip of the same node."""
    chips = {*links.devices}
    pieces = _pieces(
        [[u for u in at if u not in chips] for at in near], (v for v in range(len(near)) if v not in chips)
    )
    on = {v: {pieces[u] for u in near[v] if u not in chips} for v in links.devices}
    if set.intersection(*on.values()):
        return None
    unit_of = {v: links.vertices[v].unit for v in links.devices}
    peers: dict[int, list[int]] = {}
    for v in links.devices:
        peers.setdefault(unit_of[v], []).append(v)

    for one in links.devices[:MOST_STARTS]:
        mine = [
            one,
            *(p for p in (peers[unit_of[one]] if unit_of[one] >= 0 else ()) if on[one] & on[p] or p in near[one]),
        ]
        reached, direct = set.union(*(on[v] for v in mine)), {u for v in mine for u in near[v]}
        lost = next((v for v in links.devices if v != one and v not in direct and not on[v] & reached), None)
        if lost is not None:
            return one, lost
    return None


def _pieces(near: list[list[int]], among: Iterable[int]) -> dict[int, int]:
    """Return the first vertex of each vertex's connected component. `near` has the neighbours of each vertex."""
    found: dict[int, int] = {}
    for start in among:
        todo = [] if start in found else [start]
        while todo:
            v = todo.pop()
            if v not in found:
                found[v] = start
                todo += near[v]
    return found
