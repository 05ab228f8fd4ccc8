"""In a pipeline, torch's schedules accumulate unsharded gradients to the end of the step, and reduce them once.

The schedules also keep parameters gathered after a backward. With `gather params per pass`, each forward frees the
parameters of its stage. The stage's next forward or backward then gathers them, unless a backward came before it.
Without this sentence, parameters are gathered once a step.
"""

from __future__ import annotations

from collections.abc import Iterable

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed, of_state
from planc.ir.cache import cached_on
from planc.ir.collective import Collective
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.pipeline.actions import Action, Repeat
from planc.pipeline.split import repeats_of_rank
from planc.sharding.stage_assignment import sections_on, virtual_stages

NAME = "pipeline_keeps_state"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    if not roles.pipeline:
        return rows
    return tuple(_counted(roles, row) if of_state(row, roles) else row for row in rows)


def _counted(roles: AxisRoles, row: Collective) -> Collective:
    plan = roles.plan
    if row.carries == "grad":
        return changed(row, NAME, per="step", count=sections_on(plan, row.stage)[row.section])
    kept = ("first", "last") if roles.sharded.tied else ("last",)
    if not plan.gathers_each_pass() or row.section in kept:
        once = sections_on(plan, row.stage)[row.section] if row.phase == "forward" else 0
        return changed(row, NAME, per="step", count=once)
    gathers = gathers_of_rank(plan, row.stage)
    count = sum(
        copies * gathers.get(stage, (0, 0))[row.phase == "backward"]
        for stage, copies in _copies(roles.sharded, row).items()
    )
    once = count <= sections_on(plan, row.stage)[row.section]
    return changed(row, NAME, per="step" if once else "microbatch", count=count)


@cached_on(lambda plan, rank: (plan.cache, rank))
def gathers_of_rank(plan: Plan, rank: int) -> dict[int, tuple[int, int]]:
    """Returns the numbers of a step's parameter all-gathers in (forwards, backwards), by virtual stage of `rank`."""
    return gathers(repeats_of_rank(plan.split, plan.pipeline, plan.microbatches, rank))


def gathers(repeats: Iterable[Repeat]) -> dict[int, tuple[int, int]]:
    """Returns the numbers of parameter all-gathers in (forwards, backwards), by virtual stage, for a rank's actions in
    run-length form (`repeats`).

    The state after one iteration of a repeat does not depend on the state before it, so all iterations but the first
    have the same gathers.

    >>> forward, backward = Action("forward", 0, 0), Action("backward", 0, 0)
    >>> gathers([Repeat(2, (forward,)), Repeat(3, (forward, backward)), Repeat(2, (backward,))])
    {0: (3, 3)}
    """
    counts: dict[int, tuple[int, int]] = {}
    gathered: dict[int, bool] = {}
    for repeat in repeats:
        if not repeat.times:
            continue
        first = _gathers_once(repeat.actions, gathered)
        later = _gathers_once(repeat.actions, gathered) if repeat.times > 1 else {}
        for stage, once in first.items():
            again, before = later.get(stage, (0, 0)), counts.get(stage, (0, 0))
            forward, backward = (before[i] + once[i] + (repeat.times - 1) * again[i] for i in range(2))
            counts[stage] = forward, backward
    return counts


def _gathers_once(actions: Iterable[Action], gathered: dict[int, bool]) -> dict[int, tuple[int, int]]:
    """Returns the numbers of all-gathers in (forwards, backwards) of one iteration, by stage. `gathered`, which stages
    have gathered parameters, is updated."""
    counts: dict[int, tuple[int, int]] = {}
    for action in actions:
        forward, backward = counts.get(action.stage, (0, 0))
        going_back, whole = action.kind != "forward", gathered.get(action.stage, False)
        counts[action.stage] = forward + (not whole and not going_back), backward + (not whole and going_back)
        gathered[action.stage] = going_back
    return counts


def _copies(sharded: Sharded, row: Collective) -> dict[int, int]:
    """Returns the number of blocks of kind `row.section` on each virtual stage of pipeline rank `row.stage`."""
    plan = sharded.plan
    held = virtual_stages(plan, row.stage)
    if row.section == "first":
        return {0: 1}
    return {v: plan.model.layers_of(row.section, *plan.stages[v]) for v in held}
