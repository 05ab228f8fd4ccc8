"""Explains why a layout is faster than the next one, by the parts of the step that differ most."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from planc.searching.result import Candidate

PARTS = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "exposed_comm_s": "exposed communication",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
    "offload_s": "offload",
    "overhead_s": "overhead",
}
NAMED = 3
"""Number of parts that an explanation names, those with the largest differences."""


def reasons(best: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the layouts in `best`, fastest first, each with the reason why it is faster than the next."""
    explained = [replace(c, why=_comparison(c, other)) for c, other in itertools.pairwise(best)]
    return (*explained, *best[-1:])


def _comparison(one: Candidate, other: Candidate) -> str:
    apart = {name: _s_per_sequence(other, part) - _s_per_sequence(one, part) for part, name in PARTS.items()}
    total = other.s_per_sequence - one.s_per_sequence
    if total <= 0:
        return f"as fast, with {other.memory_gib - one.memory_gib:.2f} GiB less"
    largest = sorted(apart, key=lambda name: -abs(apart[name]))[:NAMED]
    parts = [_difference(apart[n] / other.s_per_sequence, n) for n in largest if abs(apart[n]) >= total / 20]
    return f"{total / other.s_per_sequence:.1%} less time: {', '.join(parts)}"


def _s_per_sequence(c: Candidate, part: str) -> float:
    seconds: float = getattr(c.step, part)
    return seconds / c.point.sequences


def _difference(share: float, name: str) -> str:
    return f"{abs(share):.1%} {'less' if share > 0 else 'more'} {name}"
