"""Link loads of collectives that run at once: the share of each collective's seconds in which a link is busy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter

from planc.costing.machine.topology import RoutedAlgorithm
from planc.costing.routes.fold import ArcKinds, Fold

Shares = tuple[float, ...]
"""One link's busy share of each collective."""
ROUNDED = 12
"""Decimal places to which a share is rounded, so that links with equal loads count as one."""


class LinkLoads:
    """For each link, the share of a collective's sending seconds in which the link is busy. It is 1 on the busiest link
    if the collective has one phase. The first arc of a bundle represents all its parallel links, and all bundles that
    symmetry makes equivalent."""

    def __init__(
        self,
        algorithm: RoutedAlgorithm,
        paces: Sequence[float],
        fold: Fold | None,
        joint: dict[tuple[LinkLoads, ...], list[Shares]],
        order: int,
    ) -> None:
        self.algorithm, self.order, self.joint = algorithm, order, joint
        self._fold = fold
        phases = [
            (count, {arc: amount / paces[arc] for arc, amount in totals.items()}) for count, totals in algorithm.loads
        ]
        longest_s = min(algorithm.s_per_byte, sum(count * max(arcs.values(), default=0.0) for count, arcs in phases))
        self._largest: dict[tuple[int, ...], dict[Hashable, float]] = {}
        self.shares: dict[int, float] = defaultdict(float)
        for count, arcs in phases:
            for arc, seconds in arcs.items():
                self.shares[arc] += count * seconds / longest_s

    @cached_property
    def kinds(self) -> ArcKinds | None:
        """The classes of equivalent arcs; None if every group was routed."""
        return self._fold.kinds if self._fold else None

    def largest(self, kinds: Sequence[ArcKinds]) -> dict[Hashable, float]:
        """Return the largest busy share (s/s) in each class of links. `kinds` together say which are equivalent."""
        found = self._largest.get(among := tuple(map(id, kinds)))
        if found is None:
            key, found = _common_key(kinds), {}
            for arc, share in self.shares.items():
                if share > found.get(at := key(arc), 0.0):
                    found[at] = share
            self._largest[among] = found
        return found


def joint_shares(loads: Sequence[LinkLoads]) -> list[Shares]:
    """Return the busy shares of each link that may be the busiest when the collectives of `loads` mix in any
    proportion: one share for each collective.

    A link is left out if another is at least as busy under every collective. If the loads are folded by different
    symmetries, a link has the largest share of its equivalents, which may exceed its own.
    """
    known = loads[0].joint
    key = tuple(loads)
    if key not in known:
        known[key] = [*_largest(_joint(loads))]
    return known[key]


def _joint(loads: Sequence[LinkLoads]) -> set[Shares]:
    kinds = {id(one.kinds): one.kinds for one in loads if one.kinds is not None}
    found: dict[Hashable, list[float]] = defaultdict(lambda: [0.0] * len(loads))
    for i, one in enumerate(loads):
        for link, share in one.largest([kinds[k] for k in sorted(kinds)]).items():
            found[link][i] = share
    return {tuple(round(part, ROUNDED) for part in parts) for parts in found.values()}


def _largest(every: set[Shares]) -> Iterator[Shares]:
    """Yield the Pareto-optimal entries of `every`: no other entry is at least as large in all components."""
    kept: list[Shares] = []
    for parts in sorted(every, key=lambda one: (sum(one), one), reverse=True):
        if not any(all(a <= b for a, b in zip(parts, other, strict=True)) for other in kept):
            kept.append(parts)
            yield parts


def _common_key(kinds: Sequence[ArcKinds]) -> Callable[[int], Hashable]:
    """Return a function that maps arcs to the same key if all of `kinds` together make them equivalent."""
    if not kinds:
        return int
    if len(kinds) == 1:
        return lambda arc: kinds[0].kind_of(arc)[0]
    if not all(one.commutes(other) for i, one in enumerate(kinds) for other in kinds[:i]):
        return lambda arc: tuple(map(itemgetter(0), kinds[0].key(arc)))

    def key(arc: int) -> Hashable:
        found = kinds[0].key(arc)
        for one in kinds[1:]:
            found = one.folded_key(found)
        return found

    return key
