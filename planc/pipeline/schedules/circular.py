"""The circular pipeline of XLA: a scan over iterations that shifts every stage's output to the next rank.

MaxText runs iteration i on rank r with microbatch (i - r) mod m of round (i - r) div m, so that all microbatches
run through one chunk before the next; the backward is the scan's transpose, in reverse order. The action lists are
those of `looped_bfs`. All ranks run the same code: every stage must hold the same number of layers; while the pipeline
fills and drains (the bubble), a rank computes garbage for as long as real microbatches would take.
"""

from planc.pipeline.schedule import Need, Schedule, ScheduleShape
from planc.pipeline.schedules.looped_bfs import rank_actions


def need(shape: ScheduleShape) -> Need | None:
    """Return the requirement that the number of microbatches is a multiple of the ranks, because each rank stores an
    equal share of the inputs (MaxText's microbatches per stage). None if `shape` meets it."""
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
