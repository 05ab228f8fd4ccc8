"""Interleaved 1F1B: several chunks a rank, microbatches in rounds (Narayanan et al. 2021)."""

from planc.schedules.actions import Action, Kind, Row, Turns, abreast
from planc.schedules.schedule import Schedule, Shape, whole_rounds


def passes(shape: Shape, rank: int, kind: Kind, begin: int = 0) -> Row:
    """One kind of action in order: round by round, within a round chunk by chunk (the last one first when
    going backward), within a chunk microbatch by microbatch."""
    chunks = range(shape.chunks) if kind == "forward" else range(shape.chunks - 1, -1, -1)
    once = [Turns(shape.round, (Action(kind, rank + chunk * shape.ranks, 0),)) for chunk in chunks]
    return Row(begin, once, shape.microbatches // shape.round, shape.round)


def turns(shape: Shape, rank: int) -> list[Turns]:
    warm = (shape.chunks - 1) * shape.round + 2 * (shape.ranks - rank - 1)
    warm = min(warm, shape.chunks * shape.microbatches)
    return abreast(passes(shape, rank, "forward"), passes(shape, rank, "backward", warm))


SCHEDULE = Schedule(
    name="interleaved_1f1b", place=3, turns=turns, chunks=2, free_chunks=True, need=whole_rounds, in_rounds=True
)
