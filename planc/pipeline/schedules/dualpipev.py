"""DualPipeV: DualPipe (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1) folded into a V.

Each rank holds two stages (chunks), in place of the two directions of DualPipe, and needs no second copy of parameters.
The eight steps follow the published implementation (github.com/deepseek-ai/DualPipe, dualpipev.py).
"""

from planc.pipeline.actions import Action, Repeat
from planc.pipeline.schedule import Need, Schedule, ScheduleShape, minimum_microbatches, stages_at


class _RankList:
    """Builds the action list of a rank. `stages` are the stages of chunks 0 and 1; each counts its microbatches.
    Postponed weight gradients run in the order in which they were postponed."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.repeats: list[Repeat] = []
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.pending: list[Action] = []
        """Actions that the next call of `repeat` appends."""
        self.postponed: list[Action] = []

    def forward(self, chunk: int, *, overlaps_next: bool = False) -> None:
        self.pending.append(Action("forward", self.stages[chunk], self.forwards[chunk], overlaps_next))
        self.forwards[chunk] += 1

    def backward(self, chunk: int, *, input_only: bool = False) -> None:
        """Add the next backward of a chunk; with `input_only`, postpone its weight gradient."""
        stage, number = self.stages[chunk], self.backwards[chunk]
        self.pending.append(Action("backward_input" if input_only else "backward", stage, number))
        self.backwards[chunk] += 1
        if input_only:
            self.postponed.append(Action("backward_weight", stage, number))

    def weight(self) -> None:
        """Add the oldest postponed weight gradient, if any."""
        if self.postponed:
            self.pending.append(self.postponed.pop(0))

    def overlapped(self, forward: int, backward: int) -> None:
        self.forward(forward, overlaps_next=True)
        self.backward(backward)

    def repeat(self, times: int) -> None:
        """Append the pending actions `times` times. If `times` > 1, each kind and chunk may occur once, and no weight
        gradient may be postponed."""
        actions, self.pending = tuple(self.pending), []
        for action in actions:
            if action.kind != "backward_weight":
                counts = self.forwards if action.kind == "forward" else self.backwards
                counts[self.stages.index(action.stage)] += times - 1
        if times:
            self.repeats.append(Repeat(times, actions))


def one_direction(ranks: int, rank: int, microbatches: int, stages: tuple[int, ...]) -> list[Repeat]:
    """Return the action list of rank `rank` of `ranks` for a V in which it holds these two `stages`, with this number
    of `microbatches`. The last rank is the bottom of the V."""
    made = _RankList(stages)
    inner = ranks - rank - 1
    _warm_up(made, inner, rank)
    _steady_state(made, inner, steady=microbatches - 2 * ranks + rank + 1)
    _cool_down(made, inner, rank)
    return made.repeats


def _warm_up(made: _RankList, inner: int, rank: int) -> None:
    """Steps 1 to 3: F0; F0 F1; I1 W1 F1 (the digit is the chunk, I and W are dgrad and wgrad)."""
    made.forward(0)
    made.repeat(2 * inner)
    made.forward(0)
    made.forward(1)
    made.repeat(rank + 1)
    made.backward(1, input_only=True)
    made.weight()
    made.forward(1)
    made.repeat(inner)


def _steady_state(made: _RankList, inner: int, steady: int) -> None:
    """Steps 4 and 5: F0 overlaps B1, F1 overlaps B0; then B1, F1 overlaps B0 (the digit is the chunk)."""
    if inner == 0:  # the first pair runs one after the other: rank - 1 waits for this forward
        made.forward(0)
        made.backward(1)
        made.overlapped(1, 0)
        made.repeat(1)
        steady -= 1
    made.overlapped(0, 1)
    made.overlapped(1, 0)
    made.repeat(steady)
    made.backward(1)
    made.overlapped(1, 0)
    made.repeat(inner)


def _cool_down(made: _RankList, inner: int, rank: int) -> None:
    """Steps 6 to 8: B1 B0, with weight gradients postponed in the second half; W I0; W (I and W are dgrad and
    wgrad)."""
    half, odd = (rank + 1) // 2, rank % 2 == 1
    made.backward(1)
    made.backward(0)
    made.repeat(half)
    for i in range(half, rank + 1):
        made.backward(1, input_only=i > half or odd)
        made.backward(0, input_only=True)
    for _ in range(inner):
        made.weight()
        made.backward(0, input_only=True)
    for _ in range(rank + 1):
        made.weight()
    made.repeat(1)


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank`, which holds the stages `rank` and 2 P - 1 - `rank` of the V. P is the number
    of ranks in `shape`."""
    return one_direction(shape.ranks, rank, shape.microbatches, stages_at("v", shape.ranks, 2, rank))


def need(shape: ScheduleShape) -> Need | None:
    """Return None if `shape` has at least two microbatches per rank, which the warm-up of the first rank needs, else
    this requirement."""
    return minimum_microbatches(2 * shape.ranks, shape)


SCHEDULE = Schedule(name="dualpipev", position=8, rank_actions=rank_actions, chunks=2, placement="v", need=need)
