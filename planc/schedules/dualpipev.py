"""DualPipeV: DualPipe folded into a V, without the second copy of the parameters.

The two ways of DualPipe (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1) become the two chunks of a rank;
the eight steps are those of the published implementation.
"""

from planc.schedules.actions import Action, in_turn
from planc.schedules.schedule import Need, Schedule, Shape, at_least, stages_at


class _Program:
    """A rank's list under construction; `stages` are those of way 0 and way 1, which count their own microbatches.
    Weights' gradients that were put off are done first in, first out."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.actions: list[Action] = []
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.waiting: list[Action] = []

    def forward(self, way: int, *, joined: bool = False) -> None:
        self.actions.append(Action("forward", self.stages[way], self.forwards[way], joined))
        self.forwards[way] += 1

    def backward(self, way: int, *, part: bool = False) -> None:
        """`part` puts the weights' gradients off."""
        action = Action("backward_input" if part else "backward", self.stages[way], self.backwards[way])
        self.actions.append(action)
        self.backwards[way] += 1
        if part:
            self.waiting.append(action)

    def weight(self) -> None:
        if self.waiting:
            self.actions.append(self.waiting.pop(0)._replace(kind="backward_weight"))

    def together(self, forward: int, backward: int) -> None:
        self.forward(forward, joined=True)
        self.backward(backward)

    def both_together(self, times: int) -> None:
        """Way 0 forward beside way 1 backward and the other way round, so many times."""
        begin = len(self.actions)
        self.together(0, 1)
        self.together(1, 0)
        self.actions[begin:] = in_turn(times, *self.actions[begin:])
        self.forwards = [n + times - 1 for n in self.forwards]
        self.backwards = [n + times - 1 for n in self.backwards]


def two_ways(ranks: int, rank: int, microbatches: int, stages: tuple[int, ...]) -> list[Action]:
    """What one rank of `ranks` runs, of which the last one is the innermost of the two ways."""
    program = _Program(stages)
    outer = ranks - rank - 1
    _fill(program, outer, rank)
    steady = microbatches - 2 * ranks + rank + 1
    if outer == 0:  # apart: the other rank waits for this forward
        program.forward(0)
        program.backward(1)
        program.together(1, 0)
        steady -= 1
    if steady:
        program.both_together(steady)
    for _ in range(outer):
        program.backward(1)
        program.together(1, 0)
    _drain(program, outer, rank)
    return program.actions


def _fill(program: _Program, outer: int, rank: int) -> None:
    for _ in range(2 * outer):
        program.forward(0)
    for _ in range(rank + 1):
        program.forward(0)
        program.forward(1)
    for _ in range(outer):
        program.backward(1, part=True)
        program.weight()
        program.forward(1)


def _drain(program: _Program, outer: int, rank: int) -> None:
    """From the middle of the last backwards on, weights' gradients are put off to the end."""
    half, odd = (rank + 1) // 2, rank % 2 == 1
    for i in range(rank + 1):
        program.backward(1, part=i > half or (i == half and odd))
        program.backward(0, part=i >= half)
    for _ in range(outer):
        program.weight()
        program.backward(0, part=True)
    for _ in range(rank + 1):
        program.weight()


def order(shape: Shape, rank: int) -> list[Action]:
    return two_ways(shape.ranks, rank, shape.microbatches, stages_at("v", shape.ranks, 2, rank))


def need(shape: Shape) -> Need | None:
    return at_least(2 * shape.ranks, shape)


SCHEDULE = Schedule(name="dualpipev", place=8, order=order, chunks=2, placement="v", need=need)
