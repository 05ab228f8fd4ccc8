"""The critical path of a step: the sequence of actions that determines its duration.

An action depends on the previous action of its rank and on the action of another rank whose result it uses. The longest
path through this graph is the pipeline's time. The critical rank's work after the pipeline (exposed transfers, the
optimizer update, offloading, the host) follows it. Saving a second on the path saves at most a second of the step;
saving one elsewhere saves nothing. networkx finds the path, independently of the simulation in `planc.pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from planc.costing.costed import CostedPlan
from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.pipeline.actions import Action
from planc.pipeline.split import action_lists
from planc.pipeline.stage_times import StageTimes

Node = tuple[int, int]
"""A rank, and the index of an action in its list."""


@dataclass(frozen=True, kw_only=True)
class CriticalPart(Value):
    """Consecutive actions of the critical path that are of one kind, on one pipeline rank and stage."""

    what: str
    """The kind of the actions, `send` for a hand-over to the rank, or what follows the pipeline: `after` (transfers),
    `optimizer`, `offload`, `overhead`."""
    rank: int
    stage: int
    """The virtual stage; -1 after the pipeline."""
    count: int
    seconds: float


def critical_path(costed: CostedPlan) -> tuple[CriticalPart, ...]:
    """Return the parts of the critical path of `costed`'s step, in order. Their seconds add up to those of the step.

    >>> path = critical_path(costed)
    >>> f"{sum(part.seconds for part in path):.3f} s of {costed.step.time_s:.3f} s"
    '6.233 s of 6.233 s'
    """
    plan, step, timed = costed.sharded.plan, costed.step, costed.timed
    lists = _lists(costed)
    actions = longest_path(lists, timed.times)
    parts = []
    for (kind, rank, stage), run in groupby(actions, key=lambda found: found[:3]):
        seconds = [s for *_, s in run]
        parts.append(CriticalPart(what=kind, rank=rank, stage=stage, count=len(seconds), seconds=sum(seconds)))
    rest = {
        "after": timed.after_s[timed.slowest],
        "optimizer": step.optimizer_s,
        "offload": step.offload_s,
        "overhead": step.overhead_s,
    }
    ends = (CriticalPart(what=n, rank=timed.slowest, stage=-1, count=1, seconds=s) for n, s in rest.items() if s)
    assert plan.pipeline == len(lists)
    return (*parts, *ends)


def _lists(costed: CostedPlan) -> Sequence[Sequence[Action]]:
    plan = costed.sharded.plan
    if plan.split is None:
        return [[Action(kind, 0, m) for m in range(plan.microbatches) for kind in ("forward", "backward")]]
    return action_lists(costed.timed.split, plan.pipeline, plan.microbatches)


def longest_path(lists: Sequence[Sequence[Action]], times: StageTimes) -> list[tuple[str, int, int, float]]:
    """Return the (kind, rank, stage, seconds) of each action on the longest path through `lists`, one list per rank.

    `times` holds the seconds of a microbatch on each virtual stage. Two overlapped actions count as one.

    >>> from planc.pipeline.stage_times import stage_times
    >>> longest_path([[Action("forward", 0, 0), Action("backward", 0, 0)]], stage_times([1.0], [2.0]))
    [('forward', 0, 0, 1.0), ('backward', 0, 0, 2.0)]
    """
    import networkx as nx

    graph: nx.DiGraph[Node] = nx.DiGraph()
    ends = dict(_ends(lists))
    for rank, mine in enumerate(lists):
        for i, action in enumerate(mine):
            graph.add_node((rank, i))
            if i:
                graph.add_edge((rank, i - 1), (rank, i), seconds=_seconds(mine, i - 1, times))
            at = ends.get(_needed(action))
            if at is not None and at[0] != rank:
                graph.add_edge(at, (rank, i), seconds=_seconds(lists[at[0]], at[1], times) + times.send_s)
    last = (len(lists), 0)
    for rank, mine in enumerate(lists):
        if mine:
            graph.add_edge((rank, len(mine) - 1), last, seconds=_seconds(mine, len(mine) - 1, times))
    path = nx.dag_longest_path(graph, weight="seconds")[:-1]
    found: list[tuple[str, int, int, float]] = []
    for rank, i in path:
        action = lists[rank][i]
        if found and found[-1][1] != rank and times.send_s:
            found.append(("send", rank, action.stage, times.send_s))
        found.append((action.kind, rank, action.stage, _seconds(lists[rank], i, times)))
    return [one for one in found if one[3]]


def _ends(lists: Sequence[Sequence[Action]]) -> Iterator[tuple[tuple[bool, int, int], Node]]:
    """Yield (True for a forward, stage, microbatch) of each forward and input gradient, and the node at which it ends.
    An action overlapped by the next ends with it."""
    for rank, mine in enumerate(lists):
        for i, action in enumerate(mine):
            if action.kind != "backward_weight":
                yield (action.kind == "forward", action.stage, action.microbatch), (rank, i + action.overlaps_next)


def _needed(action: Action) -> tuple[bool, int, int]:
    """Return (True for a forward, stage, microbatch) of the action on another stage whose result `action` needs;
    (False, -1, -1) for a weight gradient, which needs none."""
    if action.kind == "backward_weight":
        return False, -1, -1
    forward = action.kind == "forward"
    return forward, action.stage - 1 if forward else action.stage + 1, action.microbatch


def _seconds(mine: Sequence[Action], i: int, times: StageTimes) -> float:
    """Return the seconds of action `i` of a rank. Of two overlapped actions, the second has the seconds of both."""
    own = 0.0 if mine[i].overlaps_next else times.of(mine[i])
    return own + (times.of(mine[i - 1]) if i and mine[i - 1].overlaps_next else 0.0)
