"""Contention between state and activation transfers that run at once, on machines described as graphs.

A step waits for most activation transfers. Transfers of state (parameters, gradients) continue meanwhile: at full rate
on links that activations do not use, at half rate on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING

from planc.diag.fast_dataclass import dataclass

if TYPE_CHECKING:
    from planc.costing.routes.joint import LinkLoads


@dataclass(frozen=True, slots=True)
class LinkSeconds:
    """Seconds of transfers that run in sequence, and the seconds in which their links are busy."""

    total_s: float = 0.0
    sent: tuple[tuple[LinkLoads, float], ...] = ()
    """Busy seconds of the collectives' busiest links, by the loads of the collectives on all links."""

    def times(self, count: float) -> LinkSeconds:
        """Return these transfers repeated `count` times.

        >>> LinkSeconds(2.0).times(3).total_s
        6.0
        """
        return LinkSeconds(count * self.total_s, tuple((loads, count * s) for loads, s in self.sent))


NOTHING = LinkSeconds()


def summed(each: Iterable[LinkSeconds]) -> LinkSeconds:
    """Return the sum of `each`: all transfers in sequence.

    >>> summed([LinkSeconds(1.0), LinkSeconds(2.0)]).total_s
    3.0
    """
    total_s = 0.0
    sent: dict[LinkLoads, float] = {}
    for one in each:
        total_s += one.total_s
        for loads, seconds in one.sent:
            sent[loads] = sent.get(loads, 0.0) + seconds
    return LinkSeconds(total_s, (*sent.items(),)) if total_s else NOTHING


def beside(state: LinkSeconds, waits: LinkSeconds) -> tuple[float, LinkSeconds]:
    """Return the seconds that `state` adds to the activation transfers `waits` if both start together, and the part of
    `waits` during which no state transfer runs.

    >>> beside(LinkSeconds(3.0), LinkSeconds(2.0))  # no link is used by both
    (1.0, LinkSeconds(total_s=0.0, sent=()))
    """
    if not state.total_s or not waits.total_s:
        return state.total_s, waits
    both_s, needed_s = max(state.total_s, waits.total_s), state.total_s
    for of_state, of_waits in _by_link(dict(state.sent), dict(waits.sent)):
        both_s = max(both_s, at_once_s((state.total_s, of_state), (waits.total_s, of_waits)))
        needed_s = max(needed_s, of_state / max(0.5, 1 - of_waits / waits.total_s))
    left = 1 - needed_s / waits.total_s
    return both_s - waits.total_s, waits.times(left) if both_s == waits.total_s and left > 0 else NOTHING


def at_once_s(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the seconds until two collectives that start together and share one link have both finished.

    `one` and `other` are pairs: the seconds of the collective alone, and the seconds in which it keeps the link busy.
    While both run, each gets at least half of the link. A collective that needs less than half is not slowed down. The
    result is never below the sum of both busy seconds.

    >>> at_once_s((2.0, 1.0), (4.0, 4.0)), at_once_s((2.0, 2.0), (3.0, 3.0)), at_once_s((1.0, 1.0), (4.0, 2.0))
    (5.0, 5.0, 4.0)
    """
    (_, less_s), (whole_s, more_s) = sorted((one, other), key=itemgetter(1))
    longest_s = max(one[0], other[0])
    return max(longest_s, whole_s + less_s * max(0.0, 2 - whole_s / more_s)) if more_s else longest_s


def _by_link(state: Mapping[LinkLoads, float], waits: Mapping[LinkLoads, float]) -> Iterable[tuple[float, float]]:
    """Yield, for each link that may be the busiest, its busy seconds for `state` and for `waits` (activations)."""
    if not state or not waits:
        return
    from planc.costing.routes.joint import joint_shares

    every = sorted({*state, *waits}, key=lambda loads: loads.order)
    of_state, of_waits = ([seconds.get(loads, 0.0) for loads in every] for seconds in (state, waits))
    for parts in joint_shares(every):
        yield (
            sum(s * part for s, part in zip(of_state, parts, strict=True)),
            sum(s * part for s, part in zip(of_waits, parts, strict=True)),
        )
