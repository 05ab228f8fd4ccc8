"""In a pipeline torch's schedules hold gradients whole to the end of the step, and reduce them once.

They also keep parameters gathered after a backward. So with `gather params per pass`, where each
forward lets its parameters go, a forward gathers unless a backward came before it, and a backward
gathers if a forward came before it. Otherwise parameters are gathered once a step.
"""

from __future__ import annotations

from planc.backends.cuda.analysis.roles import FsdpPolicy, Roles
from planc.backends.cuda.rules.rule import Rows, changed, of_state
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.pipeline.actions import Action
from planc.pipeline.split import action_lists
from planc.sharding.stage_assignment import sections_on, virtual_stages

NAME = "pipeline_keeps_state"


def apply(roles: Roles, rows: Rows) -> Rows:
    if not roles.pipeline:
        return rows
    return tuple(_counted(roles, row) if of_state(row, roles) else row for row in rows)


def _counted(roles: Roles, row: Collective) -> Collective:
    plan = roles.plan
    if row.carries == "grad":
        return changed(row, NAME, per="step", count=sections_on(plan, row.stage)[row.section])
    if FsdpPolicy.of(plan).gather_per != "pass" or row.section == "last":
        once = sections_on(plan, row.stage)[row.section] if row.phase == "forward" else 0
        return changed(row, NAME, per="step", count=once)
    actions = action_lists(plan.split, plan.pipeline, plan.microbatches)[row.stage]
    count = sum(
        copies * gathers(actions, stage)[row.phase == "backward"]
        for stage, copies in _copies(roles.sharded, row).items()
    )
    once = count <= sections_on(plan, row.stage)[row.section]
    return changed(row, NAME, per="step" if once else "microbatch", count=count)


def gathers(actions: list[Action], stage: int) -> tuple[int, int]:
    """Number of (forward, backward) gathers of the parameters of virtual stage `stage` in a step.

    `actions` are those of the rank that has the stage, in order.
    """
    forward = backward = 0
    whole = False
    for action in actions:
        if action.stage != stage:
            continue
        going_back = action.kind != "forward"
        forward += not whole and not going_back
        backward += not whole and going_back
        whole = going_back
    return forward, backward


def _copies(sharded: Sharded, row: Collective) -> dict[int, int]:
    """Copies of the row's section on each virtual stage of its rank."""
    plan = sharded.plan
    held = virtual_stages(plan, row.stage)
    if row.section == "first":
        return {0: 1}
    return {v: plan.model.layers_of(row.section, *plan.stages[v]) for v in held}
