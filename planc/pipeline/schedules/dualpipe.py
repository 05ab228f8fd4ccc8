"""DualPipe: microbatches from both ends of the pipeline (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1).

Rank r holds stage r for the pipeline that runs down the ranks and stage P - 1 - r for the one that runs up, so two
ranks hold each parameter. Even microbatches run down, odd ones up.
"""

from planc.pipeline.actions import Action, Repeat
from planc.pipeline.schedule import Need, Schedule, ScheduleShape
from planc.pipeline.schedules.dualpipev import one_direction


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank`. They are those of DualPipeV on half the ranks of `shape`, with the
    microbatches renumbered.

    Chunk 0 of a rank is its stage in the pipeline whose first rank is nearer.
    """
    ranks = shape.ranks
    outer = min(rank, ranks - 1 - rank)
    stages = (outer, ranks - 1 - outer)
    up = int(rank >= ranks // 2)
    first = {stages[0]: up, stages[1]: 1 - up}

    def renumbered(action: Action) -> Action:
        return action._replace(microbatch=2 * action.microbatch + first[action.stage])

    folded = one_direction(ranks // 2, outer, shape.microbatches // 2, stages)
    return [Repeat(times, tuple(map(renumbered, actions)), step=2) for times, actions, _ in folded]


def need(shape: ScheduleShape) -> Need | None:
    """Return the requirement of equally many microbatches in both directions, at least one per rank in each. None if
    `shape` meets it."""
    minimum = 2 * shape.ranks
    if shape.microbatches % 2 == 0 and shape.microbatches >= minimum:
        return None
    return Need(f"an even number of at least {minimum}", max(minimum, shape.microbatches + shape.microbatches % 2))


SCHEDULE = Schedule(
    name="dualpipe", position=7, rank_actions=rank_actions, placement="both", need=need, even_ranks=True
)
