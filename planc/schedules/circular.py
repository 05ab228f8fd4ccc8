"""The circular pipeline of XLA: a scan over iterations that shifts every stage's output to the next rank.

MaxText runs iteration i on rank r with microbatch (i - r) mod m of round (i - r) div m, so that all microbatches
pass a chunk before the next one; the backward is the scan's transpose, in reverse order. These are the action lists
of `looped_bfs`. Ranks run the same code: every stage must hold as many layers, and the garbage that a rank computes
while the pipeline fills and drains takes as long as real microbatches (the bubble).
"""

from planc.pipeline.schedule import Need, Schedule, Shape
from planc.schedules.looped_bfs import rank_actions


def need(shape: Shape) -> Need | None:
    """The requirement that each rank stores an equal share of the inputs, MaxText's microbatches per stage; None where
    `shape` meets it."""
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
