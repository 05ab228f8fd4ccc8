"""DualPipe: microbatches from both ends of the pipeline (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1).

Rank r holds stage r of the way down and stage P - 1 - r, which is rank r's of the way up: every parameter
is on two ranks. Even microbatches go down, odd ones up.
"""

from planc.schedules.actions import Action, Turns
from planc.schedules.dualpipev import two_ways
from planc.schedules.schedule import Need, Schedule, Shape


def turns(shape: Shape, rank: int) -> list[Turns]:
    """As DualPipeV on half as many ranks; a rank's first way is the one that enters nearer to it."""
    ranks = shape.ranks
    outer = min(rank, ranks - 1 - rank)
    stages = (outer, ranks - 1 - outer)
    up = int(rank >= ranks // 2)
    first = {stages[0]: up, stages[1]: 1 - up}

    def own(action: Action) -> Action:
        return action._replace(microbatch=2 * action.microbatch + first[action.stage])

    one_way = two_ways(ranks // 2, outer, shape.microbatches // 2, stages)
    return [Turns(times, tuple(map(own, actions)), step=2) for times, actions, _ in one_way]


def need(shape: Shape) -> Need | None:
    least = 2 * shape.ranks
    if shape.microbatches % 2 == 0 and shape.microbatches >= least:
        return None
    return Need(f"an even number of at least {least}", max(least, shape.microbatches + shape.microbatches % 2))


SCHEDULE = Schedule(name="dualpipe", place=7, turns=turns, placement="both", need=need, even_ranks=True)
