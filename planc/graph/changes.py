"""Applies the changes of `--with` (a slow link, a removed node, ...) to a machine's graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from planc.graph.links import Cable, LinkKind, MachineLinks, Vertex
from planc.graph.symmetry import Digit, Symmetry
from planc.ir.hardware import Change

SWITCHES = ("switch", "leaf", "spine")


class ChangeError(ValueError):
    """A change that does not fit the machine. `name` is the unknown name in the change; `legal` are the machine's
    names."""

    def __init__(self, message: str, name: str = "", legal: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name, self.legal = name, tuple(legal)


def changed(links: MachineLinks, changes: Iterable[Change]) -> MachineLinks:
    """Return `links` after all `changes` (of `--with`), applied in order. Raises ChangeError for a change that does not
    fit the machine, such as an unknown name."""
    for change in changes:
        links = CHANGES[change.kind](links, change)
    return links


def _link(links: MachineLinks, change: Change) -> MachineLinks:
    number = {v.name: i for i, v in enumerate(links.vertices)}
    for name in change.names:
        if name not in number:
            raise ChangeError(f"no point is called `{name}`", name, tuple(number))
    ends = {number[name] for name in change.names}
    found = [i for i, c in enumerate(links.cables) if {c.source, c.target} == ends]
    if not found:
        near = [links.vertices[c.target if c.source in ends else c.source].name for c in links.cables
                if number[change.names[0]] in (c.source, c.target)]  # fmt: skip
        one, other = change.names[0], change.names[-1]
        raise ChangeError(f"no link joins `{one}` and `{other}`", other, near)
    return _rated(links, found, change.value)


def _links(links: MachineLinks, change: Change) -> MachineLinks:
    name, names = change.names[0], [kind.name for kind in links.kinds]
    if name not in names:
        raise ChangeError(f"`{name}` is no link of this machine", name, [*dict.fromkeys(names)])
    if not change.value:
        return _rated(links, [i for i, c in enumerate(links.cables) if names[c.kind] == name], 0.0)
    return replace(links, kinds=tuple(_scaled(k, change.value) if k.name == name else k for k in links.kinds))


def _scaled(kind: LinkKind, share: float) -> LinkKind:
    back = kind.back_bytes_per_s * share
    return replace(kind, bytes_per_s=kind.bytes_per_s * share, back_bytes_per_s=back)


def _rated(links: MachineLinks, numbers: Iterable[int], share: float) -> MachineLinks:
    """Return the machine with `share` of the bandwidth left on the cables whose indices are `numbers`. A share of 0
    removes the cables."""
    cables, chosen = list(links.cables), {*numbers}
    if share:
        for i in chosen:
            cables[i] = cables[i]._replace(share=cables[i].share * share)
        return replace(links, cables=(*cables,))
    if links.shape and any(links.vertices[end].place for i in chosen for end in cables[i][:2]):
        raise ChangeError("a torus without one of its links is not routed: say what share of it is left, `at 5 %`")
    return replace(links, cables=(*(c for i, c in enumerate(cables) if i not in chosen),), symmetry=None)


def _host(links: MachineLinks, change: Change) -> MachineLinks:
    """Return the machine without one node, its chips and its cards. Later ranks are renumbered without a gap."""
    name = change.names[0]
    if name not in links.units:
        raise ChangeError(f"no node is called `{name}`", name, links.units)
    if links.shape:
        raise ChangeError("a torus is costed whole: chips of a slice cannot go")
    unit = links.units.index(name)
    return _without(links, [i for i, v in enumerate(links.vertices) if v.unit == unit])


def _point(links: MachineLinks, change: Change) -> MachineLinks:
    name = change.names[0]
    found = next((i for i, v in enumerate(links.vertices) if v.name == name), None)
    if found is None:
        raise ChangeError(f"no point is called `{name}`", name, [v.name for v in links.vertices])
    if links.shape and links.vertices[found].place:
        raise ChangeError("a torus is costed whole: chips of a slice cannot go")
    return _without(links, [found])


def _apart_inside(symmetry: Symmetry | None) -> Symmetry | None:
    """Return `symmetry` without permutations of chips in a node, for nodes that lost a card or a rail."""
    if symmetry is None:
        return None
    first, second, *others = symmetry.digits
    inside = (Digit(first.size, "none"), Digit(second.size, "none"))
    return Symmetry((*inside, *others), symmetry.addresses)


def _without(links: MachineLinks, lost: Sequence[int], symmetry: Symmetry | None = None) -> MachineLinks:
    """Return the machine without the vertices `lost`. `symmetry` is the symmetry that remains (None: none is known)."""
    gone, ranks = {*lost}, 0
    number: dict[int, int] = {}
    vertices: list[Vertex] = []
    devices = {v: i for i, v in enumerate(d for d in links.devices if d not in gone)}
    for i, vertex in enumerate(links.vertices):
        if i in gone:
            continue
        number[i] = len(vertices)
        vertices.append(vertex._replace(device=devices[i]) if vertex.device >= 0 else vertex)
        ranks += vertex.device >= 0
    if not ranks:
        raise ChangeError("no chip is left")
    cables = tuple(
        Cable(number[c.source], number[c.target], c.kind, c.links, c.share)
        for c in links.cables if c.source in number and c.target in number
    )  # fmt: skip
    left = Symmetry(symmetry.digits, [symmetry.addresses[i] for i in number]) if symmetry else None
    return replace(links, vertices=(*vertices,), cables=cables, symmetry=left)


def _rail(links: MachineLinks, change: Change) -> MachineLinks:
    """Return the machine without rail number `change.value`: without the switches of the rail; or without the network
    card of that number in every node that has several; or with one link fewer on every network card."""
    at = int(change.value)
    switches = [i for i, v in enumerate(links.vertices) if v.kind == "leaf" and _rail_of(v.name) == at]
    if switches:
        return _without(links, switches, _apart_inside(links.symmetry))
    cards = [i for i, v in enumerate(links.vertices) if v.kind == "nic"]
    mine = [i for i in cards if links.vertices[i].name.endswith(f".nic{at}")]
    several = len(mine) < len(cards)
    if mine and several:
        return _without(links, mine, _apart_inside(links.symmetry))
    ends = {*cards}
    out = [i for i, c in enumerate(links.cables) if c.source in ends or c.target in ends]
    rails = min((int(links.cables[i].links) for i in out), default=0)
    if at >= rails or rails < 2:
        raise ChangeError(f"no rail has the number {at}", str(at), [str(i) for i in range(rails)])
    fewer = {i: (links.cables[i].links - 1) / links.cables[i].links for i in out}
    cables = tuple(c._replace(share=c.share * fewer.get(i, 1.0)) for i, c in enumerate(links.cables))
    return replace(links, cables=cables)


def _rail_of(name: str) -> int:
    """Return the rail number of a switch named like `a.rail3_0` (here 3); -1 for any other name."""
    _, found, rest = name.rpartition(".rail")
    number = rest.partition("_")[0]
    return int(number) if found and number.isdigit() else -1


def _oversubscription(links: MachineLinks, change: Change) -> MachineLinks:
    switches = {i for i, v in enumerate(links.vertices) if v.unit < 0 and v.kind in SWITCHES}
    above = [i for i, c in enumerate(links.cables) if c.source in switches and c.target in switches]
    if not above:
        raise ChangeError("the machine has no links between switches of a network")
    return _rated(links, above, 1 / change.value)


def _dealt(links: MachineLinks, change: Change) -> MachineLinks:
    """Return the machine with its ranks in another order: nodes are assigned to `change.value` leaf switches in turn,
    so the first node of each leaf comes first, then the second node of each leaf."""
    leaf_of = _leaves(links)
    nodes: dict[int, list[int]] = {}
    for v in links.devices:
        nodes.setdefault(links.vertices[v].unit, []).append(v)
    by_leaf: dict[int, list[int]] = {}
    for unit in nodes:
        by_leaf.setdefault(leaf_of.get(unit, -1), []).append(unit)
    leaves, count = [*by_leaf.values()], int(change.value)
    if not 1 <= count <= len(leaves):
        raise ChangeError(f"the nodes are on {len(leaves)} leaves, not {count}", str(count))
    order: list[int] = []
    for first in range(0, len(leaves), count):
        block = leaves[first : first + count]
        for i in range(max(map(len, block))):
            order += [v for leaf in block if i < len(leaf) for v in nodes[leaf[i]]]
    rank = {v: i for i, v in enumerate(order)}
    vertices = tuple(v._replace(device=rank[i]) if i in rank else v for i, v in enumerate(links.vertices))
    return replace(links, vertices=vertices, symmetry=None)


def _leaves(links: MachineLinks) -> dict[int, int]:
    """Return the first network switch that each node is connected with, by the node's index."""
    found: dict[int, int] = {}
    for c in links.cables:
        for one, other in ((c.source, c.target), (c.target, c.source)):
            unit = links.vertices[one].unit
            if unit >= 0 and links.vertices[other].unit < 0:
                found.setdefault(unit, other)
    return found


CHANGES: dict[str, Callable[[MachineLinks, Change], MachineLinks]] = {
    "link": _link,
    "links": _links,
    "host": _host,
    "point": _point,
    "rail": _rail,
    "oversubscription": _oversubscription,
    "dealt": _dealt,
}
