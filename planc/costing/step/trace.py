"""A simulated step as a trace: a row and a memory counter per pipeline rank, a span per action, an arrow per send.

It uses the Trace Event format of Perfetto and chrome://tracing: times in microseconds, phase X for spans, s and f for
both ends of an arrow, C for counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from planc.costing.costed import CostedPlan
from planc.costing.memory.peak import GIB
from planc.costing.step.memory_over_step import held_over_step
from planc.costing.step.optimizer import optimizer_s
from planc.costing.step.span_names import PHASES, action_name, optimizer_cause, part_name, transfer_name
from planc.costing.step.step_time import overhead_s, updated_load
from planc.ir.report import TimedCollective
from planc.pipeline.actions import LETTERS
from planc.pipeline.simulate import ActionSpan, action_spans
from planc.pipeline.split import action_lists
from planc.sharding.stage_assignment import virtual_stages

MOST_ACTIONS = 200_000
"""Maximum number of actions: viewers cannot open larger files."""
US_PER_S = 1e6
EDGE = 0.001
"""Distance of an arrow's end from the edge of its span, as a share of the span, so that the end is inside."""
COUNTED = {
    "params": "state",
    "optimizer": "state",
    "comm_buffers": "state",
    "grads": "working",
    "buffers": "working",
    "activations": "activations",
}
"""The counter of each part of a rank's memory."""


class TraceSpan(NamedTuple):
    """A time span of a rank. `part` is the part of the report's step time to which it belongs."""

    rank: int
    name: str
    part: str
    start_s: float
    seconds: float
    stage: int | None = None
    microbatch: int | None = None
    kind: str = ""
    """The letter of its action; empty after the last microbatch."""
    transfers: tuple[str, ...] = ()
    """Names of the action's collectives, the longest first. Some of them overlap with compute."""


def actions(costed: CostedPlan) -> int:
    """Return the number of actions in a step of `costed` over all pipeline ranks, with every backward counted as two.

    >>> actions(costed)  # 3 x 4 stages x 32 microbatches
    384
    """
    plan = costed.sharded.plan
    return 3 * len(plan.stages) * plan.microbatches


def trace(costed: CostedPlan) -> dict[str, Any]:
    """Return the trace of one step of `costed`. The spans and idle time of the slowest rank sum to the step."""
    plan = costed.sharded.plan
    assert actions(costed) <= MOST_ACTIONS
    actions_of = _action_spans(costed)
    spans = list(_step_spans(costed, actions_of))
    events = [
        *_names(costed),
        *(_event(s) for s in spans if s.seconds > 0),
        *_flows(costed, spans),
        *_counters(costed, actions_of, max(s.start_s + s.seconds for s in spans)),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"plan": plan.name, "plan_sha256": plan.sha256, "step_s": costed.step.time_s},
    }


def _action_spans(costed: CostedPlan) -> list[ActionSpan]:
    plan = costed.sharded.plan
    return action_spans(action_lists(costed.timed.split, plan.pipeline, plan.microbatches), costed.timed.times)


def _step_spans(costed: CostedPlan, spans: list[ActionSpan]) -> Iterator[TraceSpan]:
    plan = costed.sharded.plan
    end_s = max(span.end_s for span in spans)
    named = _transfers(costed)
    for rank in range(plan.pipeline):
        for span in (span for span in spans if span.rank == rank):
            yield from _spans_of_action(costed, span, named)
        yield from _spans_after_last_microbatch(costed, rank, end_s, named)


Transfers = dict[tuple[int, str], tuple[str, ...]]
"""Names of the collectives of an action, by rank and letter: F, or B for both kinds of backward; empty for collectives
that run once a step."""


def _transfers(costed: CostedPlan) -> Transfers:
    letters = {phase: "F" if letter == "F" else "B" for letter, phases in PHASES.items() for phase in phases}
    found: dict[tuple[int, str], dict[tuple[str, ...], list[TimedCollective]]] = {}
    for timed in costed.collectives:
        row = timed.row
        key = row.stage, letters.get(row.phase, "") if row.per == "microbatch" else ""
        found.setdefault(key, {}).setdefault((row.op, row.axis, row.carries, row.phase), []).append(timed)
    named: Transfers = {}
    for key, groups in found.items():
        longest = sorted(groups.values(), key=lambda rows: -sum(r.time_s for r in rows))
        named[key] = tuple(transfer_name(r.row for r in rows) for rows in longest)
    return named


def _spans_of_action(costed: CostedPlan, span: ActionSpan, named: Transfers) -> Iterator[TraceSpan]:
    """Yield the spans of an action, one after the other: transfers, recompute and compute."""
    kind, stage, microbatch, _ = span.action
    cost = costed.timed.costs[stage]
    whole = span.end_s - span.start_s
    if kind == "forward":
        parts = [("exposed_comm", cost.exposed_forward_s), ("compute", cost.forward_s)]
    elif kind == "backward_weight":
        parts = [("compute", whole)]
    else:
        kept = whole - cost.recompute_s - cost.exposed_backward_s
        parts = [("recompute", cost.recompute_s), ("compute", kept), ("exposed_comm", cost.exposed_backward_s)]
    names = {
        "compute": action_name(kind, stage, microbatch),
        "recompute": part_name(span.action.text, "recompute", [costed.sharded.plan.recompute.cause]),
        "exposed_comm": part_name(span.action.text, "transfers"),
    }
    start = span.start_s
    for part, seconds in parts:
        names_of = named.get((span.rank, "F" if kind == "forward" else "B"), ()) if part == "exposed_comm" else ()
        yield TraceSpan(span.rank, names[part], part, start, seconds, stage, microbatch, LETTERS[kind], names_of)
        start += seconds


def _spans_after_last_microbatch(costed: CostedPlan, rank: int, start: float, named: Transfers) -> Iterator[TraceSpan]:
    plan = costed.sharded.plan
    update = part_name("", "optimizer", [optimizer_cause(plan)])
    waits = part_name("", "offload", (o.cause for o in plan.offloads))
    parts = (
        ("transfers", "exposed_comm", costed.timed.after_s[rank]),
        (update, "optimizer", optimizer_s(costed.timed.updates, updated_load(costed.sharded, rank), plan.model.blocks)),
        (waits, "offload", costed.timed.offload_s[rank]),
        ("overhead", "overhead", overhead_s(plan, len(virtual_stages(plan, rank)))),
    )
    for name, part, seconds in parts:
        after = named.get((rank, ""), ()) if part == "exposed_comm" else ()
        yield TraceSpan(rank, name, part, start, seconds, transfers=after)
        start += seconds


def _flows(costed: CostedPlan, spans: list[TraceSpan]) -> Iterator[dict[str, Any]]:
    """Yield an arrow from each action to the action on another rank that receives its activations or their gradients.
    Viewers attach an arrow to the spans that contain its ends."""
    ends: dict[tuple[str, int, int], tuple[TraceSpan, TraceSpan]] = {}
    for span in spans:
        if span.stage is not None and span.microbatch is not None and span.seconds > 0 and span.kind != "W":
            key = ("F" if span.kind == "F" else "B", span.stage, span.microbatch)
            ends[key] = (ends.get(key, (span, span))[0], span)
    number = 0
    for (kind, stage, microbatch), (_, sent) in ends.items():
        received = ends.get((kind, stage + (1 if kind == "F" else -1), microbatch))
        if received is None or received[0].rank == sent.rank:
            continue
        number += 1
        name = "activations" if kind == "F" else "gradients of activations"
        for phase, span, share in (("s", sent, 1 - EDGE), ("f", received[0], EDGE)):
            flow = {"name": name, "cat": "send", "ph": phase, "id": number, "pid": 0, "tid": span.rank}
            bound = {"bp": "e"} if phase == "f" else {}  # to the span around it, not to the next one
            yield {**flow, "ts": (span.start_s + share * span.seconds) * US_PER_S, **bound}


def _counters(costed: CostedPlan, spans: list[ActionSpan], end_s: float) -> Iterator[dict[str, Any]]:
    """Yield the memory of each rank whenever it changes, in GiB by part, without the reserve."""
    held = held_over_step(costed, spans)
    for rank in range(costed.sharded.plan.pipeline):
        mine = [h for h in held if h.rank == rank]
        now = {"state": 0.0, "working": 0.0, "activations": 0.0}
        changes = [(h.start_s, COUNTED[h.part], h.size_bytes) for h in mine]
        changes += [(h.end_s, COUNTED[h.part], -h.size_bytes) for h in mine if h.end_s is not None]
        for at_s, together in groupby(sorted(changes), key=lambda c: c[0]):
            for _, part, size in together:
                now[part] = max(0.0, now[part] + size / GIB)
            yield _counter(rank, at_s, now)
        yield _counter(rank, end_s, now)


def _counter(rank: int, at_s: float, now: dict[str, float]) -> dict[str, Any]:
    name = f"memory of rank {rank}, GiB"
    return {"name": name, "ph": "C", "pid": 0, "tid": rank, "ts": at_s * US_PER_S, "args": dict(now)}


def _names(costed: CostedPlan) -> Iterator[dict[str, Any]]:
    """Yield metadata events, which name the rows: the plan for the process, a pipeline rank for each thread."""
    plan = costed.sharded.plan
    yield {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": plan.name}}
    for rank in range(plan.pipeline):
        held = ", ".join(str(v) for v in virtual_stages(plan, rank))
        name = f"rank {rank}: stage {held}" if plan.split else "every rank"
        yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": name}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": rank, "args": {"sort_index": rank}}


def _event(span: TraceSpan) -> dict[str, Any]:
    args = {k: v for k, v in (("stage", span.stage), ("microbatch", span.microbatch)) if v is not None}
    transfers = {"transfers": list(span.transfers)} if span.transfers else {}
    return {
        "name": span.name,
        "cat": span.part,
        "ph": "X",
        "ts": span.start_s * US_PER_S,
        "dur": span.seconds * US_PER_S,
        "pid": 0,
        "tid": span.rank,
        "args": args | transfers,
    }
