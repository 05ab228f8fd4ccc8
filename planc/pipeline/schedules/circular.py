"""The circular pipeline of XLA: a scan whose every iteration passes each stage's output to the next rank.

As in MaxText, iteration i on rank r runs microbatch (i - r) mod m of round (i - r) div m: all microbatches pass one
chunk before the next. The backward is the transposed scan, in reverse order. The action lists are those of
`looped_bfs`. All ranks run the same code, so stages must hold equal numbers of layers, and in the bubble ranks compute
garbage.
"""

from planc.pipeline.schedule import Need, Schedule, ScheduleShape
from planc.pipeline.schedules.looped_bfs import rank_actions


def need(shape: ScheduleShape) -> Need | None:
    """Return None if the number of microbatches in `shape` is a multiple of the ranks, else this requirement. Each rank
    stores an equal share of the inputs (MaxText's microbatches per stage)."""
    if shape.microbatches % shape.ranks == 0:
        return None
    return Need(f"a multiple of {shape.ranks}", -(-shape.microbatches // shape.ranks) * shape.ranks)


SCHEDULE = Schedule(
    name="circular",
    position=9,
    rank_actions=rank_actions,
    chunks=2,
    free_chunks=True,
    need=need,
    equal_stages=True,
    forwards_first=True,
)
