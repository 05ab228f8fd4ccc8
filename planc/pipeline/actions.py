"""Actions of a pipeline schedule, and run-length encoded lists of them.

An action is the forward or backward of one microbatch on one virtual stage, as in `torch.distributed.pipelining`. The
list of a rank is a few `Repeat`s for any number of microbatches: warm-up, steady state, cool-down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward", "backward_input", "backward_weight"]
"""Kinds of actions. `backward` is the whole backward; `backward_input` (dgrad) and `backward_weight` (wgrad) are its
two parts, which zero-bubble schedules run separately."""

LETTERS: dict[Kind, str] = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
"""Letters of torch's schedule files: `2I1` is the dgrad of stage 2 for microbatch 1."""
KINDS: dict[str, Kind] = {letter: kind for kind, letter in LETTERS.items()}


class Action(NamedTuple):
    """The forward or backward of one microbatch on one virtual stage.

    An action that `overlaps_next` runs concurrently with the next action of its rank: both start when both are ready
    and end together (torch's OVERLAP_F_B: a forward and a backward).
    """

    kind: Kind
    stage: int
    microbatch: int
    overlaps_next: bool = False

    @property
    def text(self) -> str:
        """The action in torch's notation, such as `2F0` (stage 2, forward, microbatch 0)."""
        return f"{self.stage}{LETTERS[self.kind]}{self.microbatch}"

    def shifted(self, microbatches: int) -> Action:
        """Return the same action with its microbatch number increased by `microbatches`."""
        kind, stage, microbatch, overlaps_next = self
        return NEW_TUPLE(Action, (kind, stage, microbatch + microbatches, overlaps_next))


NEW_TUPLE = tuple.__new__
"""Creates an action in a third of the time of `Action(...)`, since lists of a hundred thousand are common."""


class Repeat(NamedTuple):
    """A sequence of actions that a rank runs `times` times; each time all microbatch numbers increase by `step`."""

    times: int
    actions: tuple[Action, ...]
    step: int = 1

    def without_first(self, times: int) -> Repeat:
        """Return the remaining repetitions after the first `times`."""
        return Repeat(self.times - times, tuple(a.shifted(times * self.step) for a in self.actions), self.step)

    def below(self, microbatches: int) -> Iterator[Repeat]:
        """Yield the same actions in order, without those whose microbatch number is `microbatches` or more. `step` must
        be 1."""
        left = self
        while left.times and (kept := tuple(a for a in left.actions if a.microbatch < microbatches)):
            times = min(left.times, *(microbatches - a.microbatch for a in kept))
            yield Repeat(times, kept)
            left = left.without_first(times)


def phases(*repeats: Repeat) -> list[Repeat]:
    """Return the action list of a rank: its `repeats` (warm-up, steady state, cool-down) without those that repeat 0
    times."""
    return [r for r in repeats if r.times]


def unrolled(repeats: Iterable[Repeat]) -> list[Action]:
    """Return the single actions of these `repeats`, in order.

    >>> [a.text for a in unrolled([Repeat(2, (Action("forward", 0, 0), Action("backward", 0, 0)))])]
    ['0F0', '0B0', '0F1', '0B1']
    """
    return list(chain.from_iterable(map(_unrolled, repeats)))


def _unrolled(repeats: Repeat) -> Iterable[Action]:
    times, actions, step = repeats  # built column by column, so that no Python function runs per action
    if times <= 1 or not actions:
        return actions * times
    kinds, stages, microbatches, overlaps = zip(*actions, strict=True)
    numbers = chain.from_iterable(zip(*(range(m, m + times * step, step) for m in microbatches), strict=True))
    return map(NEW_TUPLE, repeat(Action), zip(kinds * times, stages * times, numbers, overlaps * times, strict=True))


class InstructionStream(NamedTuple):
    """The forwards, or the backwards, of a rank: one action in each time slot from slot `begin` on.

    Each of the `repeats` has one action. Together they are one round, which runs `rounds` times; each time all
    microbatch numbers increase by `step`.
    """

    begin: int
    repeats: list[Repeat]
    rounds: int = 1
    step: int = 0

    @property
    def round_slots(self) -> int:
        """Number of time slots of one round."""
        return sum(r.times for r in self.repeats)

    @property
    def end(self) -> int:
        """Index of the first time slot after the stream."""
        return self.begin + self.rounds * self.round_slots

    def between(self, low: int, high: int) -> Iterator[tuple[int, Action]]:
        """Yield (first time slot, first action) for each run of a `Repeat` that has slots from `low` to `high`
        (exclusive)."""
        slots = self.round_slots
        for number in range(max(0, (low - self.begin) // slots), min(self.rounds, -((self.begin - high) // slots))):
            slot = self.begin + number * slots
            for times, (action,), _ in self.repeats:
                if slot < high and slot + times > low:
                    yield slot, action.shifted(number * self.step)
                slot += times


def interleave(*streams: InstructionStream) -> list[Repeat]:
    """Return the action list of a rank that runs several `streams`: in each time slot, one action of every active
    stream.

    Until all streams have begun is the warm-up, and from the end of the first stream on the cool-down. With several
    rounds, rounds must have the same length in all streams; the steady state then repeats by rounds.
    """
    begin, end, slots = max(s.begin for s in streams), min(s.end for s in streams), streams[0].round_slots
    rounds = (end - begin) // slots if slots else 0
    last = max(s.end for s in streams)
    if rounds < 2:
        return _interleaved(streams, 0, last)
    assert all(s.round_slots == slots and s.step == streams[0].step for s in streams)
    warm_up = _interleaved(streams, 0, begin)
    steady = Repeat(rounds, tuple(unrolled(_interleaved(streams, begin, begin + slots))), streams[0].step)
    cool_down = _interleaved(streams, begin + rounds * slots, last)
    return [*warm_up, steady, *cool_down]


def _interleaved(streams: Sequence[InstructionStream], low: int, high: int) -> list[Repeat]:
    changes: dict[int, list[tuple[int, tuple[int, Action] | None]]] = {high: []}
    for i, stream in enumerate(streams):
        for slot, action in stream.between(low, high):
            changes.setdefault(max(low, slot), []).append((i, (slot, action)))
        if low < stream.end < high:
            changes.setdefault(stream.end, []).append((i, None))
    running: list[tuple[int, Action] | None] = [None] * len(streams)
    found = []
    for begin, end in pairwise(sorted(changes)):
        for i, now in changes[begin]:
            running[i] = now
        found.append(Repeat(end - begin, tuple(a.shifted(begin - at) for at, a in filter(None, running))))
    return found
