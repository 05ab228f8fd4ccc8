"""The pipeline of a plan (its `split layers` sentence): the schedule, and the stages and actions of each rank."""

from __future__ import annotations

from planc.ir.plan import Split
from planc.pipeline.actions import Action, Repeat, unrolled
from planc.pipeline.schedule import Schedule, ScheduleShape, stages_at
from planc.pipeline.schedules import schedules


def schedule_of(split: Split) -> Schedule:
    """Return the schedule that `split` names."""
    if split.schedule in schedules():
        return schedules()[split.schedule]
    from planc.pipeline.lockstep import lockstep_schedule

    return lockstep_schedule(split.schedule)


def shape_of(split: Split, ranks: int, microbatches: int) -> ScheduleShape:
    """Return the parameters of the action lists: `ranks`, the number of chunks in `split`, and `microbatches`."""
    return ScheduleShape(ranks, split.chunks, microbatches)


def action_lists(split: Split | None, ranks: int, microbatches: int) -> list[list[Action]]:
    """Return each rank's actions in order. Without a pipeline (`split` is None), one rank runs the forward and backward
    of each microbatch.

    `ranks` and `microbatches` are ignored for a schedule from a file, which fixes both.
    """
    if split is not None and split.order:
        from planc.pipeline import csv_schedule

        return [list(row) for row in csv_schedule.rows(split.order)]
    return [unrolled(repeats_of_rank(split, ranks, microbatches, rank)) for rank in range(ranks)]


def repeats_of_rank(split: Split | None, ranks: int, microbatches: int, rank: int) -> list[Repeat]:
    """Return the run-length encoded action list of pipeline rank `rank` of `ranks`, for a step of `microbatches`.
    `split` is None without a pipeline."""
    if split is None:
        return [Repeat(microbatches, (Action("forward", 0, 0), Action("backward", 0, 0)))]
    if split.order:
        return [Repeat(1, tuple(action_lists(split, ranks, microbatches)[rank]))]
    return schedule_of(split).rank_actions(shape_of(split, ranks, microbatches), rank)


def stages_of(split: Split, ranks: int, rank: int) -> tuple[int, ...]:
    """Return the virtual stages that pipeline rank `rank` of `ranks` holds, in order. In dualpipe two ranks hold each
    stage."""
    if split.order:
        from planc.pipeline import csv_schedule

        return csv_schedule.stages(split.order, rank)
    return stages_at(schedule_of(split).placement, ranks, split.chunks, rank)


def microbatch_copies(split: Split | None) -> int:
    """Return the number of ranks that hold each stage and share its microbatches: 2 in dualpipe, else 1. `split` is
    None without a pipeline."""
    return 1 if split is None or split.order else schedule_of(split).copies
