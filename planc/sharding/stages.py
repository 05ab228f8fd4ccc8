"""Which virtual stages a pipeline rank holds, and what of the model lies on it."""

from __future__ import annotations

from planc.ir.plan import Plan


def virtual_stages(plan: Plan, rank: int) -> tuple[int, ...]:
    """The virtual stages of pipeline rank `rank`, in order: r, r + P, r + 2P, ..."""
    return tuple(range(rank, len(plan.stages), plan.pipeline))


def layers_on(plan: Plan, rank: int) -> int:
    """Layers that pipeline rank `rank` holds."""
    return sum(plan.stages[v][1] - plan.stages[v][0] for v in virtual_stages(plan, rank))


def sections_on(plan: Plan, rank: int) -> dict[str, int]:
    """Copies of each section on a pipeline rank; `step` is what happens once everywhere."""
    held = virtual_stages(plan, rank)
    sections = {"first": int(0 in held), "block": layers_on(plan, rank)}
    sections["last"] = int(len(plan.stages) - 1 in held)
    return {**{s: n for s, n in sections.items() if n}, "step": 1}


def boundaries_sent(plan: Plan, rank: int, *, forward: bool) -> int:
    """Virtual-stage boundaries over which a rank sends in one direction.

    Stages that follow each other on one rank hand over in memory.
    """
    held = virtual_stages(plan, rank)
    step = 1 if forward else -1
    inside = range(len(plan.stages))
    return sum(1 for v in held if v + step in inside and v + step not in held)
