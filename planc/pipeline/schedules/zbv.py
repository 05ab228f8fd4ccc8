"""ZB-V: two chunks per rank, down the ranks and back; no bubble where F = B = W (Qi et al. 2023, section 6)."""

from planc.pipeline.actions import Action, Kind, Repeat
from planc.pipeline.schedule import Schedule, ScheduleShape, stages_at

BACKWARD: tuple[tuple[tuple[Kind, int], ...], ...] = tuple(
    (("backward_input", chunk), ("backward_weight", chunk)) for chunk in (0, 1)
)
"""Input and weight gradient of a backward, by chunk."""


class _RankList:
    """Builds the action list of a rank; counts the microbatches of each kind and chunk."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.repeats: list[Repeat] = []
        self.next: dict[tuple[Kind, int], int] = {}

    def add(self, times: int, *actions: tuple[Kind, int]) -> None:
        """Append these actions, given as (kind, chunk), `times` times in sequence."""
        first = []
        for kind, chunk in actions:
            number = self.next.get((kind, chunk), 0)
            first.append(Action(kind, self.stages[chunk], number))
            self.next[kind, chunk] = number + times
        if times:
            self.repeats.append(Repeat(times, tuple(first)))

    def count(self, kind: Kind, chunk: int) -> int:
        """Return the number of actions of a kind on a chunk so far."""
        return self.next.get((kind, chunk), 0)


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank`. They are built for at least 2 P - 1 microbatches, which fill the V (P is the
    number of ranks); then actions for microbatches that the plan does not have are removed."""
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
    """Alternate between chunks 0 and 1, a forward and a backward each, until their forwards run out."""
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
