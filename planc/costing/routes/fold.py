"""Equivalence of device groups under the machine's symmetry: one group of each kind is routed, and represents all.

A vertex has an address of several digits (say node and GPU), some of which symmetry permutes (planc.graph.symmetry).
Groups that differ only in such digits put the same bytes on links that differ in them. The load of a link is the bytes
of one group on all links of its kind, times the number of groups, divided by the number of links. Bandwidths are not
part of the symmetry: a single slow link is examined separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import pairwise, product
from math import prod

from planc.diag.fast_dataclass import dataclass
from planc.graph.links import MachineLinks
from planc.graph.symmetry import Address, Symmetry
from planc.ir.mesh import Axis

Key = tuple[Address, Address]
FoldedDigits = tuple[tuple[int, ...], ...]
"""For each digit, its canonical values when permuted parts are set to 0; () if all values are distinct. The last entry,
at index -1, is for an absent digit."""


@dataclass(frozen=True)
class ArcKinds:
    """Classes of equivalent arcs (cables in one direction), numbered in order of discovery. Arcs are equivalent if
    their addresses differ only in digits that the machine's symmetry permutes."""

    links: MachineLinks
    symmetry: Symmetry
    folded_digits: FoldedDigits
    found: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each examined arc its kind, and the number of arcs of that kind."""
    _numbers: dict[Key, tuple[int, int]] = field(default_factory=dict)
    _kinds: list[int] = field(default_factory=lambda: [0])

    @cached_property
    def _moving(self) -> list[tuple[int, int]]:
        """Each digit of an address that symmetry permutes, with the number of its equivalent values."""
        digits = self.symmetry.digits
        return [(d, digits[d].size // len({*values[:-1]})) for d, values in enumerate(self.folded_digits) if values]

    def key(self, arc: int) -> Key:
        """Return the class of `arc`: the addresses of its two ends, both shifted until the permuted digits are 0."""
        return self.folded_key(self._ends(arc))

    def folded_key(self, ends: Key) -> Key:
        """Return the addresses of the two `ends`, both shifted until the permuted digits are 0."""
        one, other = ends
        return self._key(one, other, self._shared_digits(one, other))

    def commutes(self, other: ArcKinds) -> bool:
        """True if the shifts of an address by these kinds and by `other` give the same result in either order."""
        digits = zip(self.folded_digits, other.folded_digits, strict=True)
        return all([a[v] for v in b] == [b[v] for v in a] for a, b in digits if a and b)

    def _ends(self, arc: int) -> Key:
        cable = self.links.cables[arc // 2]
        source, target = (cable.target, cable.source) if arc % 2 else (cable.source, cable.target)
        return self.symmetry.addresses[source], self.symmetry.addresses[target]

    def _shared_digits(self, one: Address, other: Address) -> list[tuple[int, int]]:
        """Return the permuted digits that address `one` or `other` has, each with its number of equivalent values."""
        starts, ends = one[1], other[1]
        return [(d, size) for d, size in self._moving if starts[d] >= 0 or ends[d] >= 0]

    def _key(self, one: Address, other: Address, shared: Sequence[tuple[int, int]]) -> Key:
        if not shared:
            return one, other
        starts, ends = one[1], other[1]
        first, last = [*starts], [*ends]
        for d, _ in shared:
            a, b, values = starts[d], ends[d], self.folded_digits[d]
            first[d] = values[a]
            last[d] = (b - a + values[a]) % self.symmetry.digits[d].size if a >= 0 and b >= 0 else values[b]
        return (one[0], (*first,)), (other[0], (*last,))

    def kind_of(self, arc: int) -> tuple[int, int]:
        """Return the number of `arc`'s class and its size; an arc without permuted digits is a class of one."""
        if (known := self.found.get(arc)) is not None:
            return known
        one, other = self._ends(arc)
        shared = self._shared_digits(one, other)
        key = self._key(one, other, shared) if shared else None
        kind = self._numbers.get(key) if key else None
        if kind is None:
            kind = self._kinds[0], prod(size for _, size in shared)
            self._kinds[0] += 1
            if key:
                self._numbers[key] = kind
        self.found[arc] = kind
        return kind


@dataclass(frozen=True)
class Fold:
    """The groups over some mesh axes, by kind. Symmetry makes groups of one kind equivalent, and one represents all."""

    starts: tuple[int, ...]
    """The first rank of a representative group of each kind."""
    copies: int
    """Number of groups of each kind."""
    kinds: ArcKinds

    def key(self, arc: int) -> Key:
        """Return the class of `arc`. Two arcs with the same class carry equal bytes."""
        return self.kinds.key(arc)

    def folded(self, totals: Mapping[int, float]) -> dict[int, tuple[int, float]]:
        """Return, by the number of each class of arcs, its first arc and the bytes that all groups together put on each
        of its arcs. `totals` holds the bytes that the representative groups put on single arcs."""
        kinds, kind_of, copies = self.kinds.found, self.kinds.kind_of, self.copies
        found: dict[int, tuple[int, float]] = {}
        for arc, total in totals.items():
            kind, arcs = kinds.get(arc) or kind_of(arc)
            first, before = found.get(kind, (arc, 0.0))
            found[kind] = first, before + total * (copies / arcs)
        return found

    def on_arc(self, arc: int, folded: Mapping[int, tuple[int, float]]) -> float | None:
        """Return the bytes on `arc`, from the result of `folded`; None if its class carries no bytes."""
        kind, _ = self.kinds.kind_of(arc)
        return folded[kind][1] if kind in folded else None


def fold_of(
    links: MachineLinks, used: Sequence[Axis], devices: int, kinds: dict[FoldedDigits, ArcKinds] | None = None
) -> Fold | None:
    """Return the kinds (`Fold`) of the groups over the axes `used`, in a mesh of `devices` on the machine of `links`.

    None if symmetry makes no two groups equivalent. `kinds` caches the classes of arcs for calls with other axes.

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
    reach = max((a.stride * a.size for a in used), default=1)
    other_starts: list[range] = []
    for low, high in pairwise(edges):
        at = max(i for i, stride in enumerate(strides[:-1]) if stride <= low and symmetry.digits[i].size > 1)
        grouped = any(a.stride <= low < a.stride * a.size for a in used)
        outermost, whole = high == strides[at + 1], high == low * symmetry.digits[at].size
        alike = {"any": True, "round": outermost, "line": whole, "within": reach <= strides[-2], "none": False}
        if not grouped and alike[symmetry.digits[at].exchange]:
            sizes[at] *= high // low
            continue
        parts[at].append((low // strides[at], high // low))
        if not grouped:
            other_starts.append(range(0, high, low))
    if prod(sizes) == 1:
        return None
    starts = tuple(sorted(sum(at) for at in product(*other_starts)))
    folded_digits = tuple(
        (*(sum(value // stride % n * stride for stride, n in fixed) for value in range(digit.size)), -1)
        if size > 1
        else ()
        for digit, fixed, size in zip(symmetry.digits, parts, sizes, strict=True)
    )
    kinds = {} if kinds is None else kinds
    if folded_digits not in kinds:
        kinds[folded_digits] = ArcKinds(links, symmetry, folded_digits)
    return Fold(starts, prod(sizes), kinds[folded_digits])
