"""Pipeline schedules, simulated per stage and microbatch.

A schedule is one list of actions per rank; an action waits for its rank and for the action it
depends on. Running the lists gives the makespan, each rank's idle time and how many microbatches a
rank holds at once; lists that wait for each other in a circle would never finish, and are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from planc.ir.plan import Split


class Action(NamedTuple):
    """Forward or backward of one microbatch on one virtual stage."""

    backward: bool
    stage: int
    microbatch: int


@dataclass(frozen=True)
class Timeline:
    """What a simulation gives. `in_flight[rank]` maps virtual stage to the most microbatches held."""

    makespan_s: float
    busy_s: tuple[float, ...]
    in_flight: tuple[dict[int, int], ...]
    spans: tuple[tuple[tuple[Action, float, float], ...], ...] = ()


class DeadlockError(Exception):
    """The schedule waits for itself. Our mistake: the bundled schedules are free of it."""


def orders(split: Split | None, ranks: int, microbatches: int) -> list[list[Action]]:
    """Each rank's actions in order."""
    if split is None:
        return [[Action(b, 0, m) for m in range(microbatches) for b in (False, True)]]
    if split.schedule in ("gpipe", "looped_bfs"):
        return [_all_forward(rank, ranks, split.chunks, microbatches) for rank in range(ranks)]
    if split.schedule == "1f1b":
        return [_one_forward_one_backward(rank, ranks, microbatches) for rank in range(ranks)]
    assert split.schedule == "interleaved_1f1b", split.schedule
    return [_interleaved(rank, ranks, split.chunks, microbatches) for rank in range(ranks)]


def _all_forward(rank: int, ranks: int, chunks: int, microbatches: int) -> list[Action]:
    """All microbatches forward chunk by chunk, then all backward the other way (GPipe, looped BFS)."""
    stages = [rank + c * ranks for c in range(chunks)]
    forward = [Action(False, s, m) for s in stages for m in range(microbatches)]
    return forward + [Action(True, s, m) for s in reversed(stages) for m in reversed(range(microbatches))]


def _one_forward_one_backward(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """Warm up with as many forwards as stages follow, then alternate (Narayanan et al. 2019)."""
    warm = min(ranks - rank - 1, microbatches)
    order = [Action(False, rank, m) for m in range(warm)]
    for m in range(microbatches - warm):
        order += [Action(False, rank, warm + m), Action(True, rank, m)]
    return order + [Action(True, rank, m) for m in range(microbatches - warm, microbatches)]


def _interleaved(rank: int, ranks: int, chunks: int, microbatches: int) -> list[Action]:
    """Microbatches in groups of `ranks`, chunks in turn within a group (Narayanan et al. 2021)."""
    forward = [
        Action(False, rank + c * ranks, m)
        for group in range(0, microbatches, ranks)
        for c in range(chunks)
        for m in range(group, min(group + ranks, microbatches))
    ]
    backward = [
        Action(True, rank + c * ranks, m)
        for group in range(0, microbatches, ranks)
        for c in reversed(range(chunks))
        for m in range(group, min(group + ranks, microbatches))
    ]
    warm = min((chunks - 1) * ranks + 2 * (ranks - rank - 1), len(forward))
    order = forward[:warm]
    for f, b in zip(forward[warm:], backward, strict=False):
        order += [f, b]
    return order + backward[len(forward) - warm :]


def run_schedule(
    split: Split | None,
    ranks: int,
    microbatches: int,
    forward_s: list[float],
    backward_s: list[float],
    send_s: float,
) -> Timeline:
    """Simulate a step. Once a schedule is in its stride each further round of microbatches takes the
    same time, so long steps are simulated up to there and extended."""
    chunks = split.chunks if split else 1
    short = 4 * ranks * chunks + microbatches % ranks
    if microbatches <= short + ranks:
        return simulate(orders(split, ranks, microbatches), forward_s, backward_s, send_s)
    one = simulate(orders(split, ranks, short), forward_s, backward_s, send_s)
    two = simulate(orders(split, ranks, short + ranks), forward_s, backward_s, send_s)
    rounds = (microbatches - short) // ranks
    return Timeline(
        makespan_s=one.makespan_s + rounds * (two.makespan_s - one.makespan_s),
        busy_s=tuple(a + rounds * (b - a) for a, b in zip(one.busy_s, two.busy_s, strict=True)),
        in_flight=tuple(
            {s: n + rounds * (two_held[s] - n) for s, n in one_held.items()}
            for one_held, two_held in zip(one.in_flight, two.in_flight, strict=True)
        ),
    )


def simulate(
    order: list[list[Action]],
    forward_s: list[float],
    backward_s: list[float],
    send_s: float,
    *,
    keep_spans: bool = False,
) -> Timeline:
    """Run the lists. `forward_s` and `backward_s` are seconds per virtual stage; a hand-over to
    another rank takes `send_s`. Raises DeadlockError when no rank can go on."""
    stages = len(forward_s)
    done: dict[Action, float] = {}
    home = {a.stage: rank for rank, actions in enumerate(order) for a in actions}
    clock = [0.0] * len(order)
    busy = [0.0] * len(order)
    next_ = [0] * len(order)
    spans: list[list[tuple[Action, float, float]]] = [[] for _ in order]
    left = sum(len(actions) for actions in order)
    while left:
        moved = False
        for rank, actions in enumerate(order):
            while next_[rank] < len(actions):
                action = actions[next_[rank]]
                ready = _ready(action, done, home, stages, send_s)
                if ready is None:
                    break
                cost = (backward_s if action.backward else forward_s)[action.stage]
                start = max(clock[rank], ready)
                clock[rank] = done[action] = start + cost
                busy[rank] += cost
                if keep_spans:
                    spans[rank].append((action, start, clock[rank]))
                next_[rank] += 1
                left -= 1
                moved = True
        if not moved:
            waiting = [actions[n] for actions, n in zip(order, next_, strict=True) if n < len(actions)]
            raise DeadlockError(f"no rank can go on: {waiting}")
    return Timeline(
        makespan_s=max(clock),
        busy_s=tuple(busy),
        in_flight=tuple(_most_held(actions) for actions in order),
        spans=tuple(tuple(s) for s in spans),
    )


def _ready(action: Action, done: dict[Action, float], home: dict[int, int], stages: int, send_s: float) -> float | None:
    """When what an action needs is there; None while it is not."""
    backward, stage, microbatch = action
    if not backward:
        if stage == 0:
            return 0.0
        needed = Action(False, stage - 1, microbatch)
    elif stage == stages - 1:
        needed = Action(False, stage, microbatch)
    else:
        needed = Action(True, stage + 1, microbatch)
    if needed not in done or (backward and Action(False, stage, microbatch) not in done):
        return None
    return done[needed] + (send_s if home[needed.stage] != home[stage] else 0.0)


def _most_held(actions: list[Action]) -> dict[int, int]:
    """At the moment a rank holds most microbatches (over its stages), how many of each stage."""
    held: dict[int, int] = {}
    most: dict[int, int] = {}
    for action in actions:
        held[action.stage] = held.get(action.stage, 0) + (-1 if action.backward else 1)
        if sum(held.values()) > sum(most.values()):
            most = dict(held)
    return most
