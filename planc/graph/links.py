"""The vertices and cables of a machine's graph, as tuples: a graph may have a million links."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import Literal, NamedTuple

from planc.diag.fast_dataclass import dataclass
from planc.graph.symmetry import Symmetry

VertexKind = Literal["chip", "die", "switch", "nic", "host", "socket", "leaf", "spine"]
"""A `die` is one of the framework devices of a chip that is several."""


class Vertex(NamedTuple):
    """A vertex of a machine's graph: a chip, a die, a switch, a network card, a host or a socket."""

    name: str
    kind: VertexKind
    device: int = -1
    """Its rank, where programs run on it; -1 elsewhere."""
    unit: int = -1
    """The node, rack or slice that it is in; -1 for the network outside of them."""
    place: tuple[int, ...] = ()
    """Its coordinates, on a torus."""
    reduction: float = 0.0
    """Bytes that this switch all-reduces for each byte that a link of it can carry; 0: it does not add."""
    copies: int = 1
    """Number of equal vertices that it stands for (`merged_links`)."""


@dataclass(frozen=True, slots=True)
class LinkKind:
    """A type of link: all links with the same name. Bandwidths are those of one link in one direction."""

    name: str
    bytes_per_s: float
    latency_s: float
    back_bytes_per_s: float = 0.0
    """Bandwidth of the way back; 0: the same."""
    efficiency: float = 1.0
    half_bytes: float = 0.0
    """A transfer of this size runs at half the bandwidth."""
    call_s: float = 0.0
    """Host overhead of each collective (s)."""
    op_efficiency: tuple[tuple[str, float], ...] = ()
    """Efficiency of a collective beside the all-gather's bandwidth curve."""

    def there_bytes_per_s(self) -> float:
        """Return the effective bandwidth of one link from the cable's `source` to its `target` (bytes/s)."""
        return self.bytes_per_s * self.efficiency

    def return_bytes_per_s(self) -> float:
        """Return the effective bandwidth of one link from the cable's `target` to its `source` (bytes/s)."""
        return (self.back_bytes_per_s or self.bytes_per_s) * self.efficiency


class Cable(NamedTuple):
    """Parallel links (`links` of them) between two vertices. `source` and `target` are the vertices' indices."""

    source: int
    target: int
    kind: int
    """The number of its kind in `MachineLinks.kinds`."""
    links: float = 1
    share: float = 1.0
    """Part of its bandwidth that is left, both ways: below 1 where a link is slower than its kind."""


@dataclass(frozen=True)
class MachineLinks:
    """The graph of a machine. Two vertices have at most one cable."""

    name: str
    vertices: tuple[Vertex, ...]
    cables: tuple[Cable, ...]
    kinds: tuple[LinkKind, ...]
    shape: tuple[int, ...] = ()
    """Lengths of the torus that the chips with coordinates are on; empty: there is none."""
    wrap: tuple[bool, ...] = field(default=())
    """Which of its dimensions close into rings."""
    units: tuple[str, ...] = ()
    """The name of each node, rack or slice."""
    symmetry: Symmetry | None = None
    """Digits of ranks that can change places; None where none are known."""

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The vertex of each rank, as an index of `vertices`, in rank order."""
        found, vertices = [i for i, v in enumerate(self.vertices) if v.device >= 0], self.vertices
        return tuple(sorted(found, key=lambda i: vertices[i].device))  # most machines number them so

    @property
    def chips(self) -> int:
        """Number of devices, with those that a vertex stands for."""
        return sum(self.vertices[i].copies for i in self.devices)

    def copies_of(self, cable: Cable) -> int:
        """Return the number of equal cables that `cable` stands for."""
        return max(self.vertices[cable.source].copies, self.vertices[cable.target].copies)

    def bytes_per_s(self, cable: Cable) -> tuple[float, float]:
        """Return the effective bandwidth (bytes/s) of all links of `cable`: from `source` to `target`, and back."""
        kind, links = self.kinds[cable.kind], cable.links * cable.share
        return kind.there_bytes_per_s() * links, kind.return_bytes_per_s() * links

    def cable_name(self, cable: Cable) -> str:
        """Return the name of `cable` in reports, the names of its ends joined by a hyphen."""
        return f"{self.vertices[cable.source].name}-{self.vertices[cable.target].name}"


def added_share(gain: float, units: int) -> float:
    """Return the rate at which a switch all-reduces, as a multiple of a link's bandwidth; 0 if it does not reduce.

    `gain` is the measured speedup over a ring all-reduce of `units` members (0: very many). A ring sends 2 (n - 1) / n
    of the buffer over each link.
    """
    return 0.0 if gain <= 1 or units == 1 else gain / (2 * (1 - (1 / units if units else 0.0)))
