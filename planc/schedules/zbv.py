"""ZB-V: two chunks a rank, down the ranks and back; no bubble where F = B = W (Qi et al. 2023, section 6)."""

from planc.schedules.actions import Action, Kind
from planc.schedules.schedule import Schedule, Shape, stages_at


class _Counter:
    """A rank's list under construction: the next microbatch of each kind and chunk."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.actions: list[Action] = []
        self.next: dict[tuple[Kind, int], int] = {}

    def add(self, kind: Kind, chunk: int) -> None:
        number = self.count(kind, chunk)
        self.next[kind, chunk] = number + 1
        self.actions.append(Action(kind, self.stages[chunk], number))

    def backward(self, chunk: int) -> None:
        self.add("backward_input", chunk)
        self.add("backward_weight", chunk)

    def count(self, kind: Kind, chunk: int) -> int:
        return self.next.get((kind, chunk), 0)


def order(shape: Shape, rank: int) -> list[Action]:
    """Built for at least 2 P - 1 microbatches, which fill the V; those that are not there are left out."""
    ranks, filled = shape.ranks, max(2 * shape.ranks - 1, shape.microbatches)
    build = _Counter(stages_at("v", ranks, 2, rank))
    _warm_up(build, ranks, rank)
    while build.count("forward", 1) < build.count("forward", 0) or build.count("forward", 0) < filled:
        if build.count("forward", 0) < filled:
            build.add("forward", 0)
        build.backward(0)
        build.add("forward", 1)
        build.backward(1)
    _drain(build, ranks, rank)
    return [a for a in build.actions if a.microbatch < shape.microbatches]


def _warm_up(build: _Counter, ranks: int, rank: int) -> None:
    for _ in range(2 * (ranks - rank) - 1):
        build.add("forward", 0)
    for _ in range(rank):
        build.add("forward", 1)
        build.add("forward", 0)
    for _ in range(ranks - rank):
        build.add("forward", 1)
        build.backward(1)


def _drain(build: _Counter, ranks: int, rank: int) -> None:
    """The last inputs' gradients as early as they can be, weights' in the gaps and at the end."""
    for _ in range(rank):
        build.add("backward_input", 0)
        build.add("backward_input", 1)
    for _ in range(ranks - rank):
        build.backward(0)
    for chunk in (1, 0):
        while build.count("backward_weight", chunk) < build.count("backward_input", chunk):
            build.add("backward_weight", chunk)


SCHEDULE = Schedule(name="zbv", place=6, order=order, chunks=2, placement="v")
