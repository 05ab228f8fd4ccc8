"""Pipeline schedules, one file each: which action a rank runs after which. Found by scanning this folder.

A schedule's module holds `SCHEDULE`. `engine` runs the lists with the seconds of each stage, and
`planc.pipeline.timeline` makes a step of that.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from planc.ir.plan import Split
from planc.schedules.actions import Action
from planc.schedules.schedule import Need, Schedule, Shape, stages_at

__all__ = [
    "Action",
    "Need",
    "Schedule",
    "Shape",
    "microbatch_copies",
    "of",
    "orders",
    "schedules",
    "shape",
    "splits_backward",
    "stages_of",
]

SHARED = ("actions", "engine", "graph", "least", "own", "schedule", "steady")
"""Files of this folder that are no schedule; the larger ones load when a plan needs them."""


@cache
def schedules() -> dict[str, Schedule]:
    """Every schedule by the name that a plan gives it."""
    found: dict[str, Schedule] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name in SHARED:
            continue
        schedule = getattr(importlib.import_module(f"{__name__}.{info.name}"), "SCHEDULE", None)
        if isinstance(schedule, Schedule):
            assert schedule.name not in found, schedule.name
            found[schedule.name] = schedule
    return dict(sorted(found.items(), key=lambda item: item[1].place))


def of(split: Split) -> Schedule:
    return schedules()[split.schedule]


def shape(split: Split, ranks: int, microbatches: int) -> Shape:
    return Shape(ranks, split.chunks, microbatches)


def orders(split: Split | None, ranks: int, microbatches: int) -> list[list[Action]]:
    """Each rank's actions in order. Without a pipeline, one rank runs every microbatch to its end."""
    if split is None:
        return [[Action(kind, 0, m) for m in range(microbatches) for kind in ("forward", "backward")]]
    if split.order:
        from planc.schedules import csv as own

        return [list(row) for row in own.rows(split.order)]
    size = shape(split, ranks, microbatches)
    return [of(split).order(size, rank) for rank in range(ranks)]


def stages_of(split: Split, ranks: int, rank: int) -> tuple[int, ...]:
    """The virtual stages that a pipeline rank holds, in order. Two ranks may hold the same one (dualpipe)."""
    if split.order:
        from planc.schedules import csv as own

        return own.stages(split.order, rank)
    return stages_at(of(split).placement, ranks, split.chunks, rank)


def splits_backward(split: Split) -> bool:
    """Whether gradients of inputs and of weights are actions of their own."""
    if split.order:
        return any(a.kind == "backward_weight" for row in orders(split, 0, 0) for a in row)
    return _splits_backward(split.schedule)


@cache
def _splits_backward(name: str) -> bool:
    schedule = schedules()[name]
    size = Shape(2, schedule.chunks, 4)
    return any(a.kind == "backward_weight" for turns in schedule.turns(size, 0) for a in turns.actions)


def microbatch_copies(split: Split | None) -> int:
    """Ranks that hold each stage: a rank runs one in so many of the microbatches on every stage it holds.

    1 but for dualpipe, whose two copies of a stage share the microbatches.
    """
    return 1 if split is None or split.order else of(split).copies
