"""ZB-V: two chunks per rank, down the ranks and back up; no bubble if F = B = W (Qi et al. 2023, section 6)."""

from planc.pipeline.actions import Action, Kind, Repeat
from planc.pipeline.schedule import Schedule, ScheduleShape, stages_at

BACKWARD: tuple[tuple[tuple[Kind, int], ...], ...] = tuple(
    (("backward_input", chunk), ("backward_weight", chunk)) for chunk in (0, 1)
)
"""Input and weight gradient of a backward, by chunk."""


class _RankList:
    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.repeats: list[Repeat] = []
        self.next: dict[tuple[Kind, int], int] = {}

    def add(self, times: int, *actions: tuple[Kind, int]) -> None:
        """Append these actions, each (kind, chunk), `times` times."""
        first = []
        for kind, chunk in actions:
            number = self.next.get((kind, chunk), 0)
            first.append(Action(kind, self.stages[chunk], number))
            self.next[kind, chunk] = number + times
        if times:
            self.repeats.append(Repeat(times, tuple(first)))

    def count(self, kind: Kind, chunk: int) -> int:
        return self.next.get((kind, chunk), 0)


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank`. With fewer microbatches in `shape` than fill the V (2 P - 1 on P ranks), they
    are those for 2 P - 1 microbatches without the missing ones."""
    ranks, filled = shape.ranks, max(2 * shape.ranks - 1, shape.microbatches)
    made = _RankList(stages_at("v", ranks, 2, rank))
    _warm_up(made, ranks, rank)
    _steady_state(made, filled)
    _cool_down(made, ranks, rank)
    if filled == shape.microbatches:
        return made.repeats
    return [kept for repeat in made.repeats for kept in repeat.below(shape.microbatches)]


def _warm_up(made: _RankList, ranks: int, rank: int) -> None:
    made.add(2 * (ranks - rank) - 1, ("forward", 0))
    made.add(rank, ("forward", 1), ("forward", 0))
    made.add(ranks - rank, ("forward", 1), *BACKWARD[1])


def _steady_state(made: _RankList, microbatches: int) -> None:
    """Alternate between a forward and a backward of chunk 0 and of chunk 1 until their forwards run out."""
    left = microbatches - made.count("forward", 0)
    made.add(left, ("forward", 0), *BACKWARD[0], ("forward", 1), *BACKWARD[1])
    left = microbatches - made.count("forward", 1)
    made.add(left, *BACKWARD[0], ("forward", 1), *BACKWARD[1])


def _cool_down(made: _RankList, ranks: int, rank: int) -> None:
    """Run the last input gradients as early as possible, weight gradients in the gaps and at the end."""
    made.add(rank, ("backward_input", 0), ("backward_input", 1))
    made.add(ranks - rank, *BACKWARD[0])
    for chunk in (1, 0):
        left = made.count("backward_input", chunk) - made.count("backward_weight", chunk)
        made.add(left, ("backward_weight", chunk))


SCHEDULE = Schedule(name="zbv", position=6, rank_actions=rank_actions, chunks=2, placement="v")
