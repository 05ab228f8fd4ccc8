"""ZB-V: two chunks a rank, down the ranks and back; no bubble where F = B = W (Qi et al. 2023, section 6)."""

from planc.schedules.actions import Action, Kind, Turns
from planc.schedules.schedule import Schedule, Shape, stages_at


class _Counter:
    """A rank's list under construction: the next microbatch of each kind and chunk."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.turns: list[Turns] = []
        self.next: dict[tuple[Kind, int], int] = {}

    def rounds(self, times: int, *actions: tuple[Kind, int]) -> None:
        """These kinds and chunks in turn, so many times."""
        first = []
        for kind, chunk in actions:
            number = self.next.get((kind, chunk), 0)
            first.append(Action(kind, self.stages[chunk], number))
            self.next[kind, chunk] = number + times
        if times:
            self.turns.append(Turns(times, tuple(first)))

    def count(self, kind: Kind, chunk: int) -> int:
        return self.next.get((kind, chunk), 0)


def turns(shape: Shape, rank: int) -> list[Turns]:
    """Built for at least 2 P - 1 microbatches, which fill the V; those that are not there are left out."""
    ranks, filled = shape.ranks, max(2 * shape.ranks - 1, shape.microbatches)
    build = _Counter(stages_at("v", ranks, 2, rank))
    _warm_up(build, ranks, rank)
    build.rounds(filled - build.count("forward", 0), ("forward", 0), *BOTH[0], ("forward", 1), *BOTH[1])
    build.rounds(filled - build.count("forward", 1), *BOTH[0], ("forward", 1), *BOTH[1])
    _drain(build, ranks, rank)
    if filled == shape.microbatches:
        return build.turns
    return [kept for turns in build.turns for kept in turns.until(shape.microbatches)]


BOTH: tuple[tuple[tuple[Kind, int], ...], ...] = tuple(
    (("backward_input", chunk), ("backward_weight", chunk)) for chunk in (0, 1)
)
"""Both parts of the backward, by chunk."""


def _warm_up(build: _Counter, ranks: int, rank: int) -> None:
    build.rounds(2 * (ranks - rank) - 1, ("forward", 0))
    build.rounds(rank, ("forward", 1), ("forward", 0))
    build.rounds(ranks - rank, ("forward", 1), *BOTH[1])


def _drain(build: _Counter, ranks: int, rank: int) -> None:
    """The last inputs' gradients as early as they can be, weights' in the gaps and at the end."""
    build.rounds(rank, ("backward_input", 0), ("backward_input", 1))
    build.rounds(ranks - rank, *BOTH[0])
    for chunk in (1, 0):
        left = build.count("backward_input", chunk) - build.count("backward_weight", chunk)
        build.rounds(left, ("backward_weight", chunk))


SCHEDULE = Schedule(name="zbv", place=6, turns=turns, chunks=2, placement="v")
