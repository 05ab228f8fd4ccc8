"""DualPipe: microbatches enter at both ends of the pipeline (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1).

Even microbatches run from the first of the P ranks to the last, odd ones from the last to the first. Rank r holds stage
r for even and stage P - 1 - r for odd microbatches, so two ranks hold each parameter.
"""

from planc.pipeline.actions import Action, Repeat
from planc.pipeline.schedule import Need, Schedule, ScheduleShape
from planc.pipeline.schedules.dualpipev import one_direction


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank`: those of DualPipeV on half the ranks of `shape`, with other microbatch
    numbers."""
    ranks = shape.ranks
    outer = min(rank, ranks - 1 - rank)
    stages = (outer, ranks - 1 - outer)  # chunk 0 belongs to the direction whose first rank is nearer
    up = int(rank >= ranks // 2)
    first = {stages[0]: up, stages[1]: 1 - up}

    def renumbered(action: Action) -> Action:
        return action._replace(microbatch=2 * action.microbatch + first[action.stage])

    folded = one_direction(ranks // 2, outer, shape.microbatches // 2, stages)
    return [Repeat(times, tuple(map(renumbered, actions)), step=2) for times, actions, _ in folded]


def need(shape: ScheduleShape) -> Need | None:
    """Return None if `shape` has an even number of microbatches, at least two per rank, else this requirement."""
    minimum = 2 * shape.ranks
    if shape.microbatches % 2 == 0 and shape.microbatches >= minimum:
        return None
    return Need(f"an even number of at least {minimum}", max(minimum, shape.microbatches + shape.microbatches % 2))


SCHEDULE = Schedule(
    name="dualpipe", position=7, rank_actions=rank_actions, placement="both", need=need, even_ranks=True
)
