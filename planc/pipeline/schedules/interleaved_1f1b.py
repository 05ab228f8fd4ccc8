"""Interleaved 1F1B: several virtual stages per rank, microbatches in rounds (Narayanan et al. 2021).

Rank 0 of 2 with 2 chunks (stages 0 and 2), 4 microbatches in rounds of 2:
0F0 0F1 2F0 2F1 | 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 | 2B2 2B3 0B2 0B3.
"""

from planc.pipeline.actions import Action, InstructionStream, Kind, Repeat, interleave
from planc.pipeline.schedule import Schedule, ScheduleShape, whole_rounds


def stream(shape: ScheduleShape, rank: int, kind: Kind, begin: int = 0) -> InstructionStream:
    """Return the forwards or backwards (`kind`) of rank `rank` in order, starting in time slot `begin`, for `shape`
    (ranks, chunks, microbatches).

    In each round, all its microbatches run on one chunk, then on the next; backwards start with the last chunk.
    """
    chunks = range(shape.chunks) if kind == "forward" else range(shape.chunks - 1, -1, -1)
    one_round = [Repeat(shape.round, (Action(kind, rank + chunk * shape.ranks, 0),)) for chunk in chunks]
    return InstructionStream(begin, one_round, shape.microbatches // shape.round, shape.round)


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank`: warm-up forwards, alternating forwards and backwards, cool-down backwards."""
    warm_up = (shape.chunks - 1) * shape.round + 2 * (shape.ranks - rank - 1)
    warm_up = min(warm_up, shape.chunks * shape.microbatches)
    return interleave(stream(shape, rank, "forward"), stream(shape, rank, "backward", warm_up))


SCHEDULE = Schedule(
    name="interleaved_1f1b",
    position=3,
    rank_actions=rank_actions,
    chunks=2,
    free_chunks=True,
    need=whole_rounds,
    in_rounds=True,
)
