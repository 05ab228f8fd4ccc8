"""Ranks that wait for each other are named; networkx finds the same circles in the graph of all waits."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.pipeline.actions import Action, Repeat, unrolled
from planc.pipeline.dag import rank_lists
from planc.pipeline.deadlock import find_deadlock
from planc.pipeline.schedules import schedules
from planc.pipeline.stage_times import stage_times
from planc.pipeline.timeline import timeline
from tests.pipeline.test_dag import some_shape
from tests.schedules.splits import NAMES


def circle(*lists: list[Action]) -> list[str]:
    return [wait.text() for wait in find_deadlock([[Repeat(1, tuple(actions))] for actions in lists])]


def test_a_schedule_that_waits_for_itself_is_named() -> None:
    """Rank 0 wants the gradient before it sends what rank 1 needs for it."""
    first = [Action("forward", 0, 0), Action("backward", 0, 0), Action("forward", 0, 1), Action("backward", 0, 1)]
    second = [Action("forward", 1, 0), Action("forward", 1, 1), Action("backward", 1, 0), Action("backward", 1, 1)]
    assert circle(first, second) == ["rank 0 waits at 0B0 for 1B0 of rank 1", "rank 1 waits at 1F1 for 0F1 of rank 0"]
    with pytest.raises(AssertionError, match="needs=Action"):
        timeline([first, second], stage_times([1.0] * 2, [2.0] * 2))


def test_an_order_against_itself_is_named() -> None:
    assert circle([Action("backward", 0, 0), Action("forward", 0, 0)]) == ["rank 0 waits at 0B0 for 0F0 of itself"]
    early = [Action("forward", 0, 0), Action("backward_weight", 0, 0), Action("backward_input", 0, 0)]
    assert circle(early) == ["rank 0 waits at 0W0 for 0I0 of itself"]


def test_overlapped_actions_start_together_or_not_at_all() -> None:
    both = [Action("forward", 0, 0, overlaps_next=True), Action("backward", 0, 0)]
    assert circle(both) == ["rank 0 waits at 0B0 for 0F0 of itself"]


@pytest.mark.parametrize("name", NAMES)
def test_no_bundled_schedule_deadlocks(name: str) -> None:
    for ranks, microbatches in ((2, 8), (4, 16), (6, 24)):
        shape = some_shape(name, ranks, microbatches)
        assert shape is not None
        assert find_deadlock(rank_lists(schedules()[name], shape)) == ()


def waits_of(lists: list[list[Action]]) -> nx.DiGraph[Action]:
    """Every action after those that it waits for, and after the one before it on its rank."""
    graph: nx.DiGraph[Action] = nx.DiGraph()
    last = max(a.stage for actions in lists for a in actions)
    for actions in lists:
        graph.add_edges_from(pairwise(actions))
        for a in actions:
            if a.kind == "forward" and a.stage:
                graph.add_edge(Action("forward", a.stage - 1, a.microbatch), a)
            if a.kind == "backward":
                graph.add_edge(Action("forward", a.stage, a.microbatch), a)
            if a.kind == "backward" and a.stage < last:
                graph.add_edge(Action("backward", a.stage + 1, a.microbatch), a)
    return graph


@st.composite
def orders(draw: st.DrawFn) -> list[list[Action]]:
    """Each rank's actions with some of them moved."""
    ranks, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    lists = []
    for stage in range(ranks):
        mine = [Action(kind, stage, m) for kind in ("forward", "backward") for m in range(microbatches)]
        lists.append(draw(st.permutations(mine)) if draw(st.booleans()) else mine)
    return lists


@given(orders())
def test_a_deadlock_is_a_circle_of_the_graph_of_waits(lists: list[list[Action]]) -> None:
    graph = waits_of(lists)
    found = find_deadlock([[Repeat(1, tuple(actions))] for actions in lists])
    assert bool(found) != nx.is_directed_acyclic_graph(graph)
    for wait, next_one in zip(found, (*found[1:], *found[:1]), strict=True):
        assert graph.has_edge(wait.needs, wait.action) and wait.needs in lists[wait.owner]
        assert next_one.rank == wait.owner and nx.has_path(graph, next_one.action, wait.needs)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"])
def test_the_waits_of_a_bundled_schedule_are_in_an_order(name: str) -> None:
    shape = some_shape(name, 4, 16)
    assert shape is not None
    assert nx.is_directed_acyclic_graph(waits_of([unrolled(mine) for mine in rank_lists(schedules()[name], shape)]))
