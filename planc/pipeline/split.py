"""The pipeline in a plan's `split layers` sentence: its schedule, the stages of each rank and the actions of each
rank."""

from __future__ import annotations

from planc.ir.plan import Split
from planc.pipeline.actions import Action, Repeat, unrolled
from planc.pipeline.schedule import Schedule, ScheduleShape, stages_at
from planc.pipeline.schedules import schedules


def schedule_of(split: Split) -> Schedule:
    """Return the schedule that a plan's `split` names, or its lockstep variant."""
    if split.schedule in schedules():
        return schedules()[split.schedule]
    from planc.pipeline.lockstep import lockstep_schedule

    return lockstep_schedule(split.schedule)


def shape_of(split: Split, ranks: int, microbatches: int) -> ScheduleShape:
    """Return the parameters of a schedule's action lists, for `ranks` pipeline ranks."""
    return ScheduleShape(ranks, split.chunks, microbatches)


def action_lists(split: Split | None, ranks: int, microbatches: int) -> list[list[Action]]:
    """Return each rank's actions in order. Without a pipeline (`split` is None), one rank runs forward and backward of
    every microbatch.

    `ranks` and `microbatches` are the numbers of pipeline ranks and of microbatches of a step; a schedule from a file
    fixes both.
    """
    if split is not None and split.order:
        from planc.pipeline import csv_schedule

        return [list(row) for row in csv_schedule.rows(split.order)]
    return [unrolled(repeats_of_rank(split, ranks, microbatches, rank)) for rank in range(ranks)]


def repeats_of_rank(split: Split | None, ranks: int, microbatches: int, rank: int) -> list[Repeat]:
    """Return the action list of pipeline rank `rank` in run-length form; the other arguments are those of
    `action_lists`."""
    if split is None:
        return [Repeat(microbatches, (Action("forward", 0, 0), Action("backward", 0, 0)))]
    if split.order:
        return [Repeat(1, tuple(action_lists(split, ranks, microbatches)[rank]))]
    return schedule_of(split).rank_actions(shape_of(split, ranks, microbatches), rank)


def stages_of(split: Split, ranks: int, rank: int) -> tuple[int, ...]:
    """Return the virtual stages that pipeline rank `rank` of `ranks` holds, in order. Two ranks may hold the same stage
    (dualpipe)."""
    if split.order:
        from planc.pipeline import csv_schedule

        return csv_schedule.stages(split.order, rank)
    return stages_at(schedule_of(split).placement, ranks, split.chunks, rank)


def microbatch_copies(split: Split | None) -> int:
    """Return the number of ranks that hold each stage. Each of them runs 1 / copies of the microbatches.

    The number is 1 except for dualpipe, in which two ranks hold each stage. `split` is None without a pipeline.
    """
    return 1 if split is None or split.order else schedule_of(split).copies
