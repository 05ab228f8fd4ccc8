"""DualPipeV: DualPipe folded into a V, without the second copy of the parameters.

The two ways of DualPipe (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1) become the two chunks of a rank;
the eight steps are those of the published implementation.
"""

from planc.schedules.actions import Action, Turns
from planc.schedules.schedule import Need, Schedule, Shape, at_least, stages_at


class _Program:
    """A rank's list under construction; `stages` are those of way 0 and way 1, which count their own microbatches.
    Weights' gradients that were put off are done first in, first out."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.turns: list[Turns] = []
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.actions: list[Action] = []
        """What comes next, once."""
        self.waiting: list[Action] = []

    def forward(self, way: int, *, joined: bool = False) -> None:
        self.actions.append(Action("forward", self.stages[way], self.forwards[way], joined))
        self.forwards[way] += 1

    def backward(self, way: int, *, part: bool = False) -> None:
        """`part` puts the weights' gradients off."""
        stage, number = self.stages[way], self.backwards[way]
        self.actions.append(Action("backward_input" if part else "backward", stage, number))
        self.backwards[way] += 1
        if part:
            self.waiting.append(Action("backward_weight", stage, number))

    def weight(self) -> None:
        if self.waiting:
            self.actions.append(self.waiting.pop(0))

    def together(self, forward: int, backward: int) -> None:
        self.forward(forward, joined=True)
        self.backward(backward)

    def in_turn(self, times: int) -> None:
        """What came since the last time this was asked, so many times. More than once: nothing that comes twice in it
        and no weights' gradient that is left for later."""
        actions, self.actions = tuple(self.actions), []
        for action in actions:
            if action.kind != "backward_weight":
                counts = self.forwards if action.kind == "forward" else self.backwards
                counts[self.stages.index(action.stage)] += times - 1
        if times:
            self.turns.append(Turns(times, actions))


def two_ways(ranks: int, rank: int, microbatches: int, stages: tuple[int, ...]) -> list[Turns]:
    """What one rank of `ranks` runs, of which the last one is the innermost of the two ways."""
    program = _Program(stages)
    outer = ranks - rank - 1
    _fill(program, outer, rank)
    steady = microbatches - 2 * ranks + rank + 1
    if outer == 0:  # apart: the other rank waits for this forward
        program.forward(0)
        program.backward(1)
        program.together(1, 0)
        program.in_turn(1)
        steady -= 1
    program.together(0, 1)
    program.together(1, 0)
    program.in_turn(steady)
    program.backward(1)
    program.together(1, 0)
    program.in_turn(outer)
    _drain(program, outer, rank)
    return program.turns


def _fill(program: _Program, outer: int, rank: int) -> None:
    program.forward(0)
    program.in_turn(2 * outer)
    program.forward(0)
    program.forward(1)
    program.in_turn(rank + 1)
    program.backward(1, part=True)
    program.weight()
    program.forward(1)
    program.in_turn(outer)


def _drain(program: _Program, outer: int, rank: int) -> None:
    """From the middle of the last backwards on, weights' gradients are put off to the end."""
    half, odd = (rank + 1) // 2, rank % 2 == 1
    program.backward(1)
    program.backward(0)
    program.in_turn(half)
    for i in range(half, rank + 1):
        program.backward(1, part=i > half or odd)
        program.backward(0, part=True)
    for _ in range(outer):
        program.weight()
        program.backward(0, part=True)
    for _ in range(rank + 1):
        program.weight()
    program.in_turn(1)


def turns(shape: Shape, rank: int) -> list[Turns]:
    return two_ways(shape.ranks, rank, shape.microbatches, stages_at("v", shape.ranks, 2, rank))


def need(shape: Shape) -> Need | None:
    return at_least(2 * shape.ranks, shape)


SCHEDULE = Schedule(name="dualpipev", place=8, turns=turns, chunks=2, placement="v", need=need)
