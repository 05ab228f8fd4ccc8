"""Counts microbatches in flight: those whose forward has run on a stage, and whose backward has not ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from planc.ir.plan import Split
from planc.pipeline.actions import Action, Kind, Repeat
from planc.pipeline.dag import rank_lists
from planc.pipeline.schedule import Schedule, ScheduleShape
from planc.pipeline.split import repeats_of_rank, schedule_of, shape_of, stages_of


class InFlight(NamedTuple):
    """The microbatches in flight on a rank when their number is largest (the first time)."""

    held: dict[int, int]
    """Microbatches in flight of each virtual stage."""
    awaiting_weights: dict[int, int]
    """The number of these microbatches that only wait for their wgrad, for each virtual stage."""


CHANGE: dict[Kind, int] = {"forward": 1, "backward": -1, "backward_input": 0, "backward_weight": -1}
"""Change of a rank's microbatches in flight by an action."""
AWAITS: dict[Kind, int] = {"forward": 0, "backward": 0, "backward_input": 1, "backward_weight": -1}
"""Change by an action of the microbatches that only wait for their wgrad."""
MAKES_GRADIENTS: dict[Kind, int] = {"forward": 0, "backward": 1, "backward_input": 0, "backward_weight": 1}
"""Number of microbatches whose weight gradients an action computes."""
KIND_AND_STAGE = itemgetter(0, 1)


def most_in_flight(repeats: Sequence[Repeat]) -> InFlight:
    """Return the microbatches in flight of a rank with the actions `repeats` when their number is largest.

    A microbatch is in flight until the end of its wgrad, which needs the inputs of matmuls: 32 of the 34 bytes per
    element that a layer saves with flash attention (Qi et al. 2023, table 1).

    >>> one = Action("forward", 0, 0)
    >>> most_in_flight([Repeat(3, (one,)), Repeat(3, (one._replace(kind="backward"),))]).held  # GPipe: all three
    {0: 3}
    """
    held = peak = fullest = repetition = first = 0
    for at, (times, actions, _) in enumerate(repeats):
        after = list(accumulate(CHANGE[action.kind] for action in actions))
        change, most = after[-1], max(after)
        # The peak is in the first repetition, or in the last if each repetition adds microbatches.
        before = times - 1 if change > 0 else 0
        if held + before * change + most > peak:
            peak = held + before * change + most
            fullest, repetition, first = at, before, after.index(most) + 1
        held += times * change
    counts: Counter[tuple[Kind, int]] = Counter()
    if peak:
        for times, actions, _ in [*repeats[:fullest], repeats[fullest]._replace(times=repetition)]:
            _count(counts, actions, times)
        _count(counts, repeats[fullest].actions[:first], 1)
    return _in_flight(counts)


class Begins(NamedTuple):
    """The state of a rank when a backward, dgrad or wgrad starts; its memory at this point follows from it."""

    kind: Kind
    stage: int
    """Virtual stage of the backward."""
    held: dict[int, int]
    """Microbatches in flight of each virtual stage, including that of the backward."""
    awaiting: dict[int, int]
    """The number of these microbatches that only wait for their wgrad, for each virtual stage."""
    run: dict[int, int]
    """Number of microbatches of each virtual stage whose forward has run."""
    inputs_alone: dict[int, int]
    """Number of microbatches of each virtual stage whose dgrad ran separately, before the wgrad."""
    begun: frozenset[int]
    """Virtual stages with weight gradients that are still incomplete."""
    ended: frozenset[int]
    """Virtual stages with complete weight gradients."""
    apart: frozenset[int]
    """Virtual stages whose latest weight gradients are from a separate wgrad."""
    only_apart: frozenset[int]
    """Those of them with no other weight gradients."""
    forward: int | None
    """The virtual stage of the forward immediately before; None if there was none."""


def before_backwards(repeats: Sequence[Repeat]) -> list[Begins]:
    """Return the state of a rank with the actions `repeats` at the start of each backward, dgrad and wgrad, without
    duplicates.

    >>> forward, backward = Action("forward", 0, 0), Action("backward", 0, 0)
    >>> [(b.held, *b.begun) for b in before_backwards([Repeat(2, (forward,)), Repeat(2, (backward,))])]
    [({0: 2},), ({0: 1}, 0)]
    """
    every = Counter[int]()
    for times, actions, _ in repeats:
        for action in actions:
            every[action.stage] += times * MAKES_GRADIENTS[action.kind]
    held, awaiting, made, forwards, alone = (Counter[int]() for _ in range(5))
    apart, added = set[int](), set[int]()

    def run(action: Action, times: int = 1) -> None:
        stage = action.stage
        held[stage] += times * CHANGE[action.kind]
        awaiting[stage] += times * AWAITS[action.kind]
        made[stage] += times * MAKES_GRADIENTS[action.kind]
        forwards[stage] += times * (action.kind == "forward")
        if action.kind == "backward_weight":
            apart.add(stage)
        elif action.kind != "forward":
            if stage in apart or action.kind == "backward":
                added.add(stage)
            apart.discard(stage)
            alone[stage] += times * (action.kind == "backward_input")

    def now(action: Action, before: Action | None) -> Begins:
        return Begins(
            action.kind,
            action.stage,
            _present(held),
            _present(awaiting),
            _present(forwards),
            _present(alone),
            frozenset(s for s, n in made.items() if 0 < n < every[s]),
            frozenset(s for s, n in made.items() if n == every[s] > 0),
            frozenset(apart),
            frozenset(apart - added),
            before.stage if before and before.kind == "forward" else None,
        )

    found: dict[Hashable, Begins] = {}
    before: Action | None = None
    for times, actions, _ in repeats:
        for time in range(min(times, 3)):  # the first two and the last; those between repeat the second
            if time == 2:  # the last one
                for action in actions:
                    run(action, times - 3)
            for action in actions:
                if action.kind != "forward":
                    begins = now(action, before)
                    key = (tuple(sorted(part.items())) if isinstance(part, dict) else part for part in begins)
                    found.setdefault(tuple(key), begins)
                run(action)
                before = action
    return [*found.values()]


def _present(counts: Counter[int]) -> dict[int, int]:
    return {stage: n for stage, n in counts.items() if n}


def _count(counts: Counter[tuple[Kind, int]], actions: Sequence[Action], times: int) -> None:
    for key in map(KIND_AND_STAGE, actions):
        counts[key] += times


def _in_flight(counts: Counter[tuple[Kind, int]]) -> InFlight:
    held: dict[int, int] = {}
    awaiting: dict[int, int] = {}
    for (kind, stage), n in counts.items():
        if kind == "backward_input":
            awaiting[stage] = n - counts["backward_weight", stage]
        elif CHANGE[kind]:
            held[stage] = held.get(stage, 0) + CHANGE[kind] * n
    return InFlight({s: n for s, n in held.items() if n}, {s: n for s, n in awaiting.items() if n})


@lru_cache(maxsize=256)
def in_flight_by_rank(schedule: Schedule, shape: ScheduleShape) -> tuple[InFlight, ...]:
    """Return the microbatches in flight of each rank of a named `schedule`, for `shape` (ranks, chunks,
    microbatches)."""
    return tuple(map(most_in_flight, rank_lists(schedule, shape)))


def in_flight_lower_bound(split: Split, ranks: int, microbatches: int, rank: int = 0) -> dict[int, int]:
    """Return a lower bound on the microbatches in flight of each virtual stage of a pipeline rank, at the rank's peak.

    These are the microbatches in flight in a step of only two rounds; a longer step begins with the same actions. For a
    schedule from a file, the result is exact.

    Args:
        split: the plan's `split` sentence.
        ranks: number of pipeline ranks.
        microbatches: number of microbatches of the step.
        rank: the pipeline rank.
    """
    if split.order:
        return most_in_flight(repeats_of_rank(split, ranks, microbatches, rank)).held
    whole, schedule = shape_of(split, ranks, microbatches), schedule_of(split)
    round_ = whole.round if schedule.in_rounds else ranks
    short = whole._replace(
        microbatches=min(microbatches, 2 * round_), fixed_round=whole.round if schedule.in_rounds else 0
    )
    if schedule.need(short) is not None:
        return dict.fromkeys(stages_of(split, ranks, rank)[:1], 1)
    return rank_in_flight(schedule, short, rank)


@lru_cache(maxsize=4096)
def rank_in_flight(schedule: Schedule, shape: ScheduleShape, rank: int) -> dict[int, int]:
    """Return the microbatches in flight of each virtual stage of rank `rank` of a named `schedule`, for `shape` (ranks,
    chunks, microbatches)."""
    return most_in_flight(schedule.rank_actions(shape, rank)).held
