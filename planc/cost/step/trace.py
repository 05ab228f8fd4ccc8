"""A simulated step as a trace: a row a pipeline rank, a span an action, in the Trace Event format that
Perfetto and chrome://tracing read (times in microseconds, durations of complete events, phase X)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from planc.cost.costed import CostedPlan
from planc.cost.step.offload import offload_s
from planc.cost.step.optimizer import optimizer_s
from planc.cost.step.rank_cost import StageCost
from planc.cost.step.step_time import overhead_s
from planc.pipeline.actions import LETTERS
from planc.pipeline.simulate import ActionSpan, action_spans
from planc.pipeline.split import action_lists
from planc.sharding.stage_assignment import load_of, microbatches_each, virtual_stages

MOST_ACTIONS = 200_000
"""More make a file that viewers cannot open."""
US_PER_S = 1e6


class Span(NamedTuple):
    """A stretch of a rank's time. `part` is what the report counts it as."""

    rank: int
    name: str
    part: str
    start_s: float
    seconds: float
    stage: int | None = None
    microbatch: int | None = None


def actions(costed: CostedPlan) -> int:
    """Number of actions of a step of `costed`, over all pipeline ranks; a backward in two parts counts twice.

    >>> actions(costed)  # 3 x 4 stages x 32 microbatches
    384
    """
    plan = costed.sharded.plan
    return 3 * len(plan.stages) * plan.microbatches


def trace(costed: CostedPlan) -> dict[str, Any]:
    """The trace of one step of `costed`. The spans of the slowest rank and its idle time sum to the step."""
    plan = costed.sharded.plan
    assert actions(costed) <= MOST_ACTIONS
    events = [*_names(costed), *(_event(s) for s in step_spans(costed) if s.seconds > 0)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"plan": plan.name, "plan_sha256": plan.sha256, "step_s": costed.step.time_s},
    }


def step_spans(costed: CostedPlan) -> Iterator[Span]:
    """Every span of every rank of `costed`, each rank's in order of time."""
    plan, times = costed.sharded.plan, costed.timed.times
    spans = action_spans(action_lists(plan.split, plan.pipeline, plan.microbatches), times)
    end_s = max(span.end_s for span in spans)
    for rank in range(plan.pipeline):
        for span in (span for span in spans if span.rank == rank):
            yield from _spans_of_action(span, costed.timed.costs[span.action.stage])
        yield from _spans_after_last_microbatch(costed, rank, end_s)


def _spans_of_action(span: ActionSpan, cost: StageCost) -> Iterator[Span]:
    """An action's transfers, replay and compute, one after the other."""
    kind, stage, microbatch, _ = span.action
    whole = span.end_s - span.start_s
    if kind == "forward":
        parts = [("exposed_comm", cost.exposed_forward_s), ("compute", cost.forward_s)]
    elif kind == "backward_weight":
        parts = [("compute", whole)]
    else:
        kept = whole - cost.recompute_s - cost.exposed_backward_s
        parts = [("recompute", cost.recompute_s), ("compute", kept), ("exposed_comm", cost.exposed_backward_s)]
    names = {"compute": kind.replace("_", " of "), "recompute": "recompute", "exposed_comm": "transfers"}
    start = span.start_s
    for part, seconds in parts:
        name = f"{stage}{LETTERS[kind]}{microbatch} {names[part]}"
        yield Span(span.rank, name, part, start, seconds, stage, microbatch)
        start += seconds


def _spans_after_last_microbatch(costed: CostedPlan, rank: int, start: float) -> Iterator[Span]:
    """Spans of a rank's work once a step, after the last microbatch."""
    sharded, plan = costed.sharded, costed.sharded.plan
    mine = [costed.timed.costs[v] for v in virtual_stages(plan, rank)]
    each = microbatches_each(plan)
    busy = each * sum(c.forward_s + c.backward_s + c.recompute_s for c in mine)
    parts = (
        ("transfers", "exposed_comm", costed.timed.after_s[rank]),
        ("optimizer", "optimizer", optimizer_s(costed.timed.updates, load_of(plan, rank), plan.model.blocks)),
        ("offload", "offload", offload_s(sharded, rank, busy)),
        ("overhead", "overhead", overhead_s(plan, len(mine))),
    )
    for name, part, seconds in parts:
        yield Span(rank, name, part, start, seconds)
        start += seconds


def _names(costed: CostedPlan) -> Iterator[dict[str, Any]]:
    """Metadata events: the process is the plan, a thread is a pipeline rank."""
    plan = costed.sharded.plan
    yield {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": plan.name}}
    for rank in range(plan.pipeline):
        held = ", ".join(str(v) for v in virtual_stages(plan, rank))
        name = f"rank {rank}: stage {held}" if plan.split else "every rank"
        yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": name}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": rank, "args": {"sort_index": rank}}


def _event(span: Span) -> dict[str, Any]:
    args = {k: v for k, v in (("stage", span.stage), ("microbatch", span.microbatch)) if v is not None}
    return {
        "name": span.name,
        "cat": span.part,
        "ph": "X",
        "ts": span.start_s * US_PER_S,
        "dur": span.seconds * US_PER_S,
        "pid": 0,
        "tid": span.rank,
        "args": args,
    }
