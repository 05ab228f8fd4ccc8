"""Assigns virtual stages, and thereby the sections of the model (embedding, blocks, head), to pipeline ranks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import cached_on
from planc.ir.model import Param
from planc.ir.plan import Plan
from planc.pipeline.split import microbatch_copies, stages_of


def virtual_stages(plan: Plan, rank: int) -> tuple[int, ...]:
    """Return the virtual stages that the schedule of `plan` places on pipeline rank `rank`, in order."""
    return stages_of(plan.split, plan.pipeline, rank) if plan.split else (0,)


def microbatches_each(plan: Plan) -> int:
    """Return the microbatches per step that a pipeline rank of `plan` runs on each of its stages: all of its
    data-parallel replica's, or half of them if the schedule places every stage on two ranks.

    >>> microbatches_each(plan)  # 512 sequences over fsdp 16, microbatch 1
    32
    """
    return plan.microbatches // microbatch_copies(plan.split)


@cached_on(lambda plan, rank: (plan.cache, rank))
def sections_on(plan: Plan, rank: int) -> dict[str, int]:
    """Return the counts of blocks, by kind, and of the modules before and after them on pipeline rank `rank`. `step`,
    for the work done once a step, is always 1.

    >>> sections_on(plan, 0)  # the embedding and 20 of 80 layers
    {'first': 1, 'block': 20, 'step': 1}
    """
    held = virtual_stages(plan, rank)
    sections = {"first": int(0 in held)}
    for kind in plan.model.blocks:
        sections[kind] = sum(plan.model.layers_of(kind, *plan.stages[v]) for v in held)
    sections["last"] = int(len(plan.stages) - 1 in held)
    return {**{s: n for s, n in sections.items() if n}, "step": 1}


def rank_classes(plan: Plan) -> tuple[int, ...]:
    """Return, for each pipeline rank of `plan`, the first rank that has the same blocks, stages and sends.

    >>> rank_classes(plan)
    (0, 1, 1, 3)
    """
    first: dict[tuple[object, ...], int] = {}
    return tuple(first.setdefault(_load(plan, rank), rank) for rank in range(plan.pipeline))


def _load(plan: Plan, rank: int) -> tuple[object, ...]:
    held = sections_on(plan, rank)
    again = () if plan.recompute.every == 1 else tuple(replayed_on(plan, rank, s, n) for s, n in held.items())
    ways = tuple(boundaries_sent(plan, rank, forward=forward) for forward in (True, False))
    return (*held.items(), *stages_on(plan, rank).items(), *again, *ways)


def replayed_on(plan: Plan, rank: int, section: str, copies: int) -> int:
    """Return the number of the `copies` of a `section` on pipeline rank `rank` that the backward recomputes.

    With `recompute ... every N layers` these are the layers whose index is a multiple of N.
    """
    every = plan.recompute.every
    if every == 1 or section not in plan.model.blocks:
        return copies
    layers = (n for v in virtual_stages(plan, rank) for n in range(*plan.stages[v]) if n % every == 0)
    return sum(plan.model.layers_of(section, n, n + 1) for n in layers)


def load_of(plan: Plan, rank: int) -> dict[str, int]:
    """Return the counts of blocks, by kind, and of the modules before and after them on pipeline rank `rank`."""
    return {s: n for s, n in sections_on(plan, rank).items() if s != "step"}


def replayed_copies(plan: Plan, rank: int) -> dict[str, int]:
    """Return, for each count in `load_of`, how many the backward recomputes on pipeline rank `rank`."""
    return {s: replayed_on(plan, rank, s, n) for s, n in load_of(plan, rank).items()}


@cached_on(lambda plan, stage: (plan.cache, stage))
def sections_of(plan: Plan, stage: int) -> dict[str, int]:
    """Return the counts of blocks, by kind, and of the modules before and after them in one virtual `stage`.

    >>> sections_of(plan, 3)  # the last 20 layers, final norm, head and loss
    {'block': 20, 'last': 1}
    """
    sections = {"first": int(stage == 0)}
    sections |= {kind: plan.model.layers_of(kind, *plan.stages[stage]) for kind in plan.model.blocks}
    sections["last"] = int(stage == len(plan.stages) - 1)
    return {s: n for s, n in sections.items() if n}


def copies_on(plan: Plan, param: Param, sections: dict[str, int]) -> int:
    """Return how many copies of parameter `param` are on a rank with these `sections`: one per block that has it, or
    one in all if the modules before or after the blocks use it."""
    return copies_in(sections, param.sections, plan.model.blocks)


def copies_in(sections: Mapping[str, int], used_by: Iterable[str], blocks: Container[str]) -> int:
    """Return how many copies of a tensor or op that the sections `used_by` share are on a rank with these `sections`:
    one for each block, but at most one if a section that is not in `blocks` uses it too."""
    copies, shared = 0, False
    for section in used_by:
        copies += sections.get(section, 0)
        shared = shared or section not in blocks
    return min(copies, 1) if shared else copies


StageKind = tuple[tuple[str, int], ...]
"""A virtual stage as the copies of each section in it."""
StageKinds = dict[StageKind, int]
"""The differing virtual stages of a rank, with the number of each."""


def stages_on(plan: Plan, rank: int) -> StageKinds:
    """Return the distinct virtual stages on pipeline rank `rank` (the counts of their sections), and how many of each.

    >>> stages_on(plan, 0)  # one, with the embedding and 20 of 80 layers
    {(('first', 1), ('block', 20)): 1}
    """
    found: StageKinds = {}
    for v in virtual_stages(plan, rank):
        kind = tuple(sections_of(plan, v).items())
        found[kind] = found.get(kind, 0) + 1
    return found


@dataclass(frozen=True, slots=True)
class Division:
    """The parts of a model on each pipeline rank and virtual stage; equal ranks or stages are stored once."""

    loads: tuple[dict[str, int], ...]
    """Section copies of each distinct kind of rank."""
    replayed: tuple[dict[str, int], ...]
    """Those of them that the backward recomputes, by load; all, except with `recompute ... every N layers`."""
    stages: tuple[StageKinds, ...]
    """The virtual stages of a rank, by load."""
    load: tuple[int, ...]
    """Index into `loads` for each rank."""
    kinds: tuple[tuple[int, dict[str, int]], ...]
    """Each distinct kind of virtual stage: the index of its rank's load, and its section copies."""
    kind: tuple[int, ...]
    """Index into `kinds` for each virtual stage."""
    held: tuple[tuple[int, ...], ...]
    """Virtual stages of each rank."""


def division_of(plan: Plan) -> Division:
    """Return the division of `plan`'s model over its pipeline."""
    loads: dict[tuple[StageKind, StageKind, tuple[tuple[StageKind, int], ...]], int] = {}
    kinds: dict[tuple[int, StageKind], int] = {}
    sections = [
        (tuple(load_of(plan, r).items()), tuple(replayed_copies(plan, r).items()), tuple(stages_on(plan, r).items()))
        for r in range(plan.pipeline)
    ]
    load = tuple(loads.setdefault(on, len(loads)) for on in sections)
    held = tuple(virtual_stages(plan, rank) for rank in range(plan.pipeline))
    homes = {v: load[rank] for rank, stages in enumerate(held) for v in stages}
    stages = [(homes[v], tuple(sections_of(plan, v).items())) for v in range(len(plan.stages))]
    kind = tuple(kinds.setdefault(stage, len(kinds)) for stage in stages)
    differing = tuple((home, dict(of)) for home, of in kinds)
    return Division(
        tuple(dict(on) for on, _, _ in loads),
        tuple(dict(again) for _, again, _ in loads),
        tuple(dict(each) for _, _, each in loads),
        load,
        differing,
        kind,
        held,
    )


def boundaries_sent(plan: Plan, rank: int, *, forward: bool) -> int:
    """Return the number of boundaries between virtual stages over which rank `rank` sends: to later stages if
    `forward`, else to earlier ones.

    Consecutive stages on one rank pass activations in memory, except in a schedule of two opposite pipelines.
    """
    held = virtual_stages(plan, rank)
    step = 1 if forward else -1
    inside = range(len(plan.stages))
    in_memory = held if microbatch_copies(plan.split) == 1 else ()
    return sum(1 for v in held if v + step in inside and v + step not in in_memory)
