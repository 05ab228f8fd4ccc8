"""1F1B: warm up, then alternate one forward and one backward, then cool down (Narayanan et al. 2019; with the
flush at the end of a step, PipeDream-Flush, 2021).

Rank 0 of 3, 5 microbatches: F0 F1 | F2 B0 F3 B1 F4 B2 | B3 B4.
"""

from planc.pipeline.actions import Action, Repeat, phases
from planc.pipeline.schedule import Need, Schedule, ScheduleShape, minimum_microbatches


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank` of P: P - `rank` - 1 warm-up forwards, then one forward and one backward in
    turn, which keep P - `rank` microbatches in flight.

    >>> from planc.pipeline.actions import unrolled
    >>> " ".join(a.text for a in unrolled(rank_actions(ScheduleShape(ranks=3, chunks=1, microbatches=5), 0)))
    '0F0 0F1 0F2 0B0 0F3 0B1 0F4 0B2 0B3 0B4'
    """
    warm_up = min(shape.ranks - rank - 1, shape.microbatches)
    steady = shape.microbatches - warm_up
    return phases(
        Repeat(warm_up, (Action("forward", rank, 0),)),
        Repeat(steady, (Action("forward", rank, warm_up), Action("backward", rank, 0))),
        Repeat(warm_up, (Action("backward", rank, steady),)),
    )


def need(shape: ScheduleShape) -> Need | None:
    """Return None if `shape` has at least one microbatch per stage, as torch requires, else this requirement."""
    return minimum_microbatches(shape.ranks, shape)


SCHEDULE = Schedule(name="1f1b", position=2, rank_actions=rank_actions, need=need)
