"""Memory of a rank over the simulated step: persistent state, and the activations of each microbatch.

State and communicators are allocated for the whole step. So are gradients and buffers, at their largest size, unless
memory peaks in the optimizer update: then they are allocated after the last microbatch. A microbatch's activations are
allocated from the end of its forward to the end of its backward. They are scaled so that the peak is the report's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from planc.costing.costed import CostedPlan
from planc.costing.memory.activations import saved_by_section
from planc.costing.memory.peak import GIB
from planc.pipeline.simulate import ActionSpan
from planc.sharding.stage_assignment import sections_of

STEADY = ("params", "optimizer", "comm_buffers")
"""Parts of the report's memory that are allocated for the whole step."""
WORKING = ("grads", "buffers")


class HeldBytes(NamedTuple):
    """One allocation on a rank until `end_s` (None: beyond the step). Activations also have stage and microbatch."""

    rank: int
    part: str
    size_bytes: float
    start_s: float
    end_s: float | None
    stage: int | None = None
    microbatch: int | None = None


def held_over_step(costed: CostedPlan, spans: Sequence[ActionSpan]) -> list[HeldBytes]:
    """Return all allocations over the step of `costed`, whose actions are `spans`. The peak of the allocations on a
    rank is the total of its stage in the report, less the reserve.

    >>> from planc.pipeline.simulate import action_spans
    >>> from planc.pipeline.split import action_lists
    >>> plan = costed.sharded.plan
    >>> lists = action_lists(costed.timed.split, plan.pipeline, plan.microbatches)
    >>> held = held_over_step(costed, action_spans(lists, costed.timed.times))
    >>> f"{sum(h.size_bytes for h in held if h.rank == 0 and h.part == 'params') / 2**30:.1f} GiB of parameters"
    '4.8 GiB of parameters'
    """
    end_s = max(span.end_s for span in spans)
    found: list[HeldBytes] = []
    for rank in range(costed.sharded.plan.pipeline):
        mine = [span for span in spans if span.rank == rank]
        found += held_by_rank(costed, rank, mine, end_s)
    return found


def held_by_rank(costed: CostedPlan, rank: int, spans: Sequence[ActionSpan], end_s: float) -> list[HeldBytes]:
    """Return all allocations of one `rank` over the step of `costed`.

    Args:
        costed: the plan and its memory by stage.
        rank: a pipeline rank.
        spans: its actions.
        end_s: end of the last action of all ranks, in seconds of the step.

    >>> from planc.pipeline.simulate import action_spans
    >>> from planc.pipeline.split import action_lists
    >>> plan = costed.sharded.plan
    >>> spans = action_spans(action_lists(costed.timed.split, plan.pipeline, plan.microbatches), costed.timed.times)
    >>> mine = [span for span in spans if span.rank == 3]
    >>> held = held_by_rank(costed, 3, mine, max(span.end_s for span in spans))
    >>> f"{max(size for _, size in sizes_over_time(h for h in held if h.part == 'activations')) / 2**30:.1f} GiB"
    '9.7 GiB'
    """
    parts = costed.memory.stages[rank].per_device_gib
    sizes = {name: getattr(parts, name) * GIB for name in (*STEADY, *WORKING)}
    at_update = parts.activations == 0
    found = [HeldBytes(rank, name, sizes[name], 0.0, None) for name in STEADY if sizes[name]]
    begin_s = end_s if at_update else 0.0
    found += [HeldBytes(rank, name, sizes[name], begin_s, None) for name in WORKING if sizes[name]]
    activations = _activations(costed, rank, spans)
    most = max((size for _, size in sizes_over_time(activations)), default=0.0)
    most_allowed = sum(sizes[name] for name in WORKING) if at_update else parts.activations * GIB
    share = (min(1.0, most_allowed / most) if at_update else most_allowed / most) if most else 0.0
    return [*found, *(h._replace(size_bytes=h.size_bytes * share) for h in activations)]


def _activations(costed: CostedPlan, rank: int, spans: Sequence[ActionSpan]) -> list[HeldBytes]:
    plan, saved = costed.sharded.plan, saved_by_section(costed.sharded)
    ends = {
        (s.action.stage, s.action.microbatch): s.end_s
        for s in spans
        if s.action.kind in ("backward", "backward_weight")
    }
    sizes = {s: sum(n * saved[kind] for kind, n in sections_of(plan, s).items()) for s in {stage for stage, _ in ends}}
    return [
        HeldBytes(rank, "activations", sizes[s.action.stage], s.end_s, ends[s.action[1:3]], *s.action[1:3])
        for s in spans
        if s.action.kind == "forward" and sizes[s.action.stage]
    ]


def sizes_over_time(held: Iterable[HeldBytes]) -> list[tuple[float, float]]:
    """Return the times (s) at which the bytes `held` change, each with the bytes after the change, in order of time.

    At equal times, bytes are freed before others are allocated.

    >>> sizes_over_time([HeldBytes(0, "activations", 10.0, 1.0, 3.0), HeldBytes(0, "activations", 5.0, 3.0, None)])
    [(1.0, 10.0), (3.0, 0.0), (3.0, 5.0)]
    """
    changes: list[tuple[float, int, float]] = []
    for h in held:
        changes.append((h.start_s, 1, h.size_bytes))
        if h.end_s is not None:
            changes.append((h.end_s, 0, -h.size_bytes))
    changes.sort()
    sizes = accumulate(change for _, _, change in changes)
    return [(at_s, max(0.0, size)) for (at_s, _, _), size in zip(changes, sizes, strict=True)]
