"""The groups of an axis that symmetry makes alike: one of each kind is routed, and counts for all.

Groups that differ only in digits that can change places (planc.graph.symmetry) leave the same bytes on links that
differ in those digits. What one of them leaves on all links of such a kind, times the groups, divided by the links, is
what every link of the kind carries. Bandwidths take no part in it: a single slow link is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise, product
from math import prod

from planc.diag.fast_dataclass import dataclass
from planc.graph.links import MachineLinks
from planc.graph.symmetry import Address, Symmetry
from planc.ir.mesh import Axis

Key = tuple[Address, Address]


@dataclass(frozen=True)
class Fold:
    """The groups over some axes of a mesh, by what symmetry leaves of them."""

    links: MachineLinks
    symmetry: Symmetry
    starts: tuple[int, ...]
    """The first rank of a group of each kind."""
    copies: int
    """Groups of each kind."""
    fixed: tuple[tuple[tuple[int, int], ...], ...]
    """For each digit of the machine the parts of it that differ between kinds: stride in the digit, and size."""
    sizes: tuple[int, ...]
    """For each digit the number of its values that are alike."""
    _kinds: dict[int, tuple[Key, float]] = field(default_factory=dict)

    def key(self, arc: int) -> Key:
        """The kind of `arc`: the addresses of its two ends, moved together until the digits that move are 0."""
        cable = self.links.cables[arc // 2]
        source, target = (cable.target, cable.source) if arc % 2 else (cable.source, cable.target)
        (name, one), (other_name, other) = (self.symmetry.addresses[v] for v in (source, target))
        if one == other:
            same = tuple(map(self._canonical, one, self.fixed))
            return (name, same), (other_name, same)
        starts, ends = [], []
        for a, b, fixed, digit in zip(one, other, self.fixed, self.symmetry.digits, strict=True):
            least = self._canonical(a, fixed)
            starts.append(least)
            ends.append((b - a + least) % digit.size if a >= 0 and b >= 0 else self._canonical(b, fixed))
        return (name, (*starts,)), (other_name, (*ends,))

    @staticmethod
    def _canonical(value: int, fixed: Sequence[tuple[int, int]]) -> int:
        """The value of a digit when its parts that move are 0."""
        return sum(value // stride % size * stride for stride, size in fixed) if value >= 0 else -1

    def folded(self, totals: Mapping[int, float]) -> dict[Key, tuple[int, float]]:
        """Bytes on every arc of a kind, with its first arc, from `totals`: those of one group of each kind."""
        found: dict[Key, tuple[int, float]] = {}
        for arc, total in totals.items():
            if (kind := self._kinds.get(arc)) is None:
                key = self.key(arc)
                kind = self._kinds[arc] = key, self.copies / self._orbit(key)
            key, share = kind
            first, before = found.get(key, (arc, 0.0))
            found[key] = first, before + total * share
        return found

    def _orbit(self, key: Key) -> int:
        """Arcs of a kind."""
        (_, one), (_, other) = key
        return prod(size for size, a, b in zip(self.sizes, one, other, strict=True) if a >= 0 or b >= 0)


def fold_of(links: MachineLinks, used: Sequence[Axis], devices: int) -> Fold | None:
    """The fold of the groups over the axes `used` of a mesh of `devices` on the machine of `links`.

    None where symmetry makes no two groups alike.

    >>> from planc.graph.symmetry import Digit
    >>> nodes = Symmetry((Digit(8), Digit(4)), addresses=[])  # four nodes of eight
    >>> machine = MachineLinks(name="pod", vertices=(), cables=(), kinds=(), symmetry=nodes)
    >>> fold_of(machine, [Axis(name="tp", size=8, stride=1)], devices=32).copies
    4
    """
    symmetry = links.symmetry
    if symmetry is None or prod(d.size for d in symmetry.digits) != devices:
        return None
    strides = [1]
    for digit in symmetry.digits:
        strides.append(strides[-1] * digit.size)
    edges = sorted({*strides, *(edge for a in used for edge in (a.stride, a.stride * a.size))})
    if any(high % low for low, high in pairwise(edges)):
        return None
    parts: list[list[tuple[int, int]]] = [[] for _ in symmetry.digits]
    sizes = [1] * len(symmetry.digits)
    other_starts: list[range] = []
    for low, high in pairwise(edges):
        at = max(i for i, stride in enumerate(strides[:-1]) if stride <= low and symmetry.digits[i].size > 1)
        grouped = any(a.stride <= low < a.stride * a.size for a in used)
        exchange = symmetry.digits[at].exchange
        if not grouped and (exchange == "any" or (exchange == "round" and high == strides[at + 1])):
            sizes[at] *= high // low
            continue
        parts[at].append((low // strides[at], high // low))
        if not grouped:
            other_starts.append(range(0, high, low))
    if prod(sizes) == 1:
        return None
    starts = tuple(sorted(sum(at) for at in product(*other_starts)))
    return Fold(links, symmetry, starts, prod(sizes), tuple(map(tuple, parts)), (*sizes,))
