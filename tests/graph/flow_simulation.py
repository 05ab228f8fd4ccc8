"""A second reference: flows on a graph, each with its fair share of the links, from event to event.

Max-min fairness by progressive filling: all rates rise together, those on a link that is full stay as they are. When a
flow ends, all rates are found again. Nothing here knows planc's routing: paths are networkx's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf

import networkx as nx

Edge = tuple[str, str]


def simulated_s(graph: nx.DiGraph, flows: Iterable[tuple[str, str, float]]) -> float:
    """Seconds until the last of `flows` (from, to, bytes) has arrived, each divided over its shortest paths."""
    left: list[tuple[list[Edge], float]] = []
    for source, target, amount in flows:
        paths = list(shortest(graph, source, target))
        left += [(list(pairwise(path)), amount * share) for path, share in paths]
    now = 0.0
    while left:
        rates = fair_rates(graph, [edges for edges, _ in left])
        step = min(amount / rate for (_, amount), rate in zip(left, rates, strict=True))
        now += step
        after = [(edges, amount - step * rate) for (edges, amount), rate in zip(left, rates, strict=True)]
        left = [(edges, amount) for edges, amount in after if amount > 1e-9]
    return now


def shortest(graph: nx.DiGraph, source: str, target: str) -> list[tuple[list[str], float]]:
    """The shortest paths that pass through no chip, each with its share: at every fork as much goes each way.

    Where several ports lead there, the paths by the fastest port.
    """
    inner = graph.subgraph(v for v, at in graph.nodes(data=True) if at["device"] < 0 or v in (source, target))
    every = list(nx.all_shortest_paths(inner, source, target))
    rates = [min(graph[p[0]][p[1]]["bytes_per_s"], graph[p[-2]][p[-1]]["bytes_per_s"]) for p in every]
    paths = [p for p, rate in zip(every, rates, strict=True) if rate == max(rates)]
    shares = []
    for path in paths:
        share = 1.0
        for i in range(len(path) - 1):
            share /= len({p[i + 1] for p in paths if p[: i + 1] == path[: i + 1]})
        shares.append(share)
    return list(zip(paths, shares, strict=True))


def fair_rates(graph: nx.DiGraph, paths: list[list[Edge]]) -> list[float]:
    rates = [inf] * len(paths)
    room = {edge: graph.edges[edge]["bytes_per_s"] for path in paths for edge in path}
    users = {edge: {i for i, path in enumerate(paths) if edge in path} for edge in room}
    while any(users.values()):
        tight = min((e for e in users if users[e]), key=lambda e: room[e] / len(users[e]))
        rate = room[tight] / len(users[tight])
        for i in list(users[tight]):
            rates[i] = rate
            for edge in paths[i]:
                room[edge] -= rate
                users[edge].discard(i)
    return rates
