"""The circular pipeline of XLA: a scan over iterations that shifts every stage's output to the next rank.

MaxText runs iteration i on rank r with microbatch (i - r) mod m of round (i - r) div m, so all
microbatches pass a chunk before the next one; the backward is the scan's transpose, in reverse. Those are
the lists of `looped_bfs`. Ranks run the same code: every stage must hold as much, and what a rank computes
on nothing while the pipeline fills and drains takes as long as the real thing (the bubble).
"""

from planc.schedules.looped_bfs import turns
from planc.schedules.schedule import Need, Schedule, Shape


def need(shape: Shape) -> Need | None:
    """Each rank stores an equal share of the inputs: MaxText's microbatches per stage."""
    if shape.microbatches % shape.ranks == 0:
        return None
    return Need(f"a multiple of {shape.ranks}", -(-shape.microbatches // shape.ranks) * shape.ranks)


SCHEDULE = Schedule(
    name="circular",
    place=9,
    turns=turns,
    chunks=2,
    free_chunks=True,
    need=need,
    equal_stages=True,
    steady=False,
)
