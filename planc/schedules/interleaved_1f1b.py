"""Interleaved 1F1B: several chunks a rank, microbatches in rounds (Narayanan et al. 2021)."""

from itertools import chain

from planc.schedules.actions import Action, Kind, in_turn
from planc.schedules.schedule import Schedule, Shape, whole_rounds


def passes(shape: Shape, rank: int, kind: Kind) -> list[Action]:
    """One kind of action in order: round by round, within a round chunk by chunk (the last one first when
    going backward), within a chunk microbatch by microbatch."""
    chunks = range(shape.chunks) if kind == "forward" else range(shape.chunks - 1, -1, -1)
    rounds = range(0, shape.microbatches, shape.round)
    firsts = [Action(kind, rank + chunk * shape.ranks, first) for first in rounds for chunk in chunks]
    return list(chain.from_iterable(in_turn(shape.round, first) for first in firsts))


def order(shape: Shape, rank: int) -> list[Action]:
    forward, backward = passes(shape, rank, "forward"), passes(shape, rank, "backward")
    warm = min((shape.chunks - 1) * shape.round + 2 * (shape.ranks - rank - 1), len(forward))
    steady = len(forward) - warm
    in_pairs = chain.from_iterable(zip(forward[warm:], backward[:steady], strict=True))
    return [*forward[:warm], *in_pairs, *backward[steady:]]


SCHEDULE = Schedule(
    name="interleaved_1f1b", place=3, order=order, chunks=2, free_chunks=True, need=whole_rounds, in_rounds=True
)
