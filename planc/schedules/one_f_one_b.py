"""1F1B: warm up, then alternate one forward and one backward, then cool down (Narayanan et al. 2019).

Rank 0 of 3, 5 microbatches: F0 F1 | F2 B0 F3 B1 F4 B2 | B3 B4.
"""

from planc.pipeline.actions import Action, Repeat, phases
from planc.pipeline.schedule import Need, Schedule, Shape, minimum_microbatches


def rank_actions(shape: Shape, rank: int) -> list[Repeat]:
    """As many warm-up forwards as stages follow, so that P - rank microbatches are in flight."""
    warm_up = min(shape.ranks - rank - 1, shape.microbatches)
    steady = shape.microbatches - warm_up
    return phases(
        Repeat(warm_up, (Action("forward", rank, 0),)),
        Repeat(steady, (Action("forward", rank, warm_up), Action("backward", rank, 0))),
        Repeat(warm_up, (Action("backward", rank, steady),)),
    )


def need(shape: Shape) -> Need | None:
    """torch refuses fewer microbatches than stages."""
    return minimum_microbatches(shape.ranks, shape)


SCHEDULE = Schedule(name="1f1b", position=2, rank_actions=rank_actions, need=need)
