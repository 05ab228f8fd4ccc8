"""Simulates a step of a plan's pipeline: its time (s) and the microbatches in flight.

The simulator is imported only if a plan has a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Split
from planc.pipeline.actions import Action, Repeat
from planc.pipeline.schedule import Schedule, ScheduleShape
from planc.pipeline.split import action_lists, schedule_of, shape_of
from planc.pipeline.stage_times import StageTimes

if TYPE_CHECKING:
    from planc.pipeline.in_flight import InFlight


@dataclass(frozen=True)
class Timeline:
    """The result of a simulated pipeline step."""

    makespan_s: float
    """Seconds from the start of the first action to the end of the last one."""
    in_flight: tuple[dict[int, int], ...]
    """For each rank its virtual stages with the microbatches in flight at the rank's peak."""
    weight_waits: tuple[dict[int, int], ...] = ()
    """For each rank its virtual stages with the number of those microbatches that only wait for their wgrad."""


def run_schedule(split: Split | None, ranks: int, microbatches: int, times: StageTimes) -> Timeline:
    """Simulate one step of a plan's pipeline.

    Args:
        split: the plan's `split` sentence; None for one rank with one stage.
        ranks: number of pipeline ranks.
        microbatches: number of microbatches of the step.
        times: seconds of one microbatch on each virtual stage.

    >>> from planc.pipeline.stage_times import stage_times
    >>> run_schedule(plan.split, 4, 8, stage_times([1.0] * 4, [2.0] * 4)).makespan_s  # 1F1B: (8 + 4 - 1) x 3 s
    33.0
    """
    if split is None:
        return Timeline(microbatches * (times.forward_s[0] + times.backward_s[0]), ({0: 1},), ({},))
    if split.order:
        return timeline(action_lists(split, ranks, microbatches), times)
    from planc.pipeline.in_flight import in_flight_by_rank

    schedule, shape = schedule_of(split), shape_of(split, ranks, microbatches)
    return _timeline(makespan_s(schedule, shape, times), in_flight_by_rank(schedule, shape))


def makespan_s(schedule: Schedule, shape: ScheduleShape, times: StageTimes) -> float:
    """Return the seconds of a step of a named `schedule`, for `shape` (ranks, chunks, microbatches) and the stage
    `times`."""
    if schedule.forwards_first:
        from planc.pipeline.lower_bound import relaxed_order

        # Exact with two: the length of the critical path is linear in the microbatch at which it changes ranks, and so
        # largest at the first or the last one.
        return relaxed_order(schedule, shape, 2).makespan_s(times)
    from planc.pipeline.steady_state import step_order

    return step_order(schedule, shape).makespan_s(times)


def timeline(lists: Sequence[Sequence[Action]], times: StageTimes) -> Timeline:
    """Simulate a step in which each rank runs one of the `lists` of actions. The lists must not deadlock.

    `times` has the seconds of one microbatch on each virtual stage.
    """
    from planc.pipeline.dag import execution_order
    from planc.pipeline.in_flight import most_in_flight
    from planc.pipeline.steady_state import StepOrder

    repeats = [[Repeat(1, tuple(actions))] if actions else [] for actions in lists]
    return _timeline(StepOrder(execution_order(repeats)).makespan_s(times), tuple(map(most_in_flight, repeats)))


def _timeline(makespan_s: float, ranks: tuple[InFlight, ...]) -> Timeline:
    return Timeline(makespan_s, tuple(r.held for r in ranks), tuple(r.awaiting_weights for r in ranks))


def clear_caches() -> None:
    """Clear the cached execution orders, so that a benchmark measures a first run."""
    from planc.pipeline.dag import rank_lists
    from planc.pipeline.in_flight import in_flight_by_rank, rank_in_flight
    from planc.pipeline.lower_bound import relaxed_order
    from planc.pipeline.steady_state import periodic_order, step_order

    for cached in (in_flight_by_rank, rank_in_flight, step_order, periodic_order, relaxed_order, rank_lists):
        cached.cache_clear()
