"""Busy seconds of each link of a machine in one step, by the mesh axes of the collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from planc.costing.machine.group import device_group
from planc.costing.machine.topology import RoutedAlgorithm
from planc.costing.routes.algorithms import Routes
from planc.ir.collective import Collective
from planc.ir.plan import Plan

ByArc = dict[int, float]


def busy_seconds(plan: Plan, rows: Iterable[Collective]) -> dict[tuple[str, ...], ByArc]:
    """Return the seconds in a step that each link sends, by the mesh axes of the collectives in `rows` of `plan`.

    Links are arcs (cables in one direction). One arc represents all parallel arcs, and all that symmetry makes
    equivalent. The result is empty for machines that are costed in closed form, and lacks the links of a torus.

    >>> busy_seconds(plan, [])
    {}
    """
    sent: dict[tuple[tuple[str, ...], int], tuple[Routes, RoutedAlgorithm, float]] = {}
    for row in rows:
        routes = device_group(plan.mesh, plan.cluster, row.axes).routes
        if not isinstance(routes, Routes) or routes.size < 2:
            continue
        chosen = min(routes.algorithms(row.op), key=lambda one: one.seconds(row.buffer_bytes))
        key = row.axes, id(chosen)
        _, _, before = sent.get(key, (routes, chosen, 0.0))
        sent[key] = routes, chosen, before + row.count * row.buffer_bytes
    found: dict[tuple[str, ...], ByArc] = defaultdict(lambda: defaultdict(float))
    for (axes, _), (routes, chosen, total_bytes) in sent.items():
        paces = routes.fabric.paces
        for count, totals in chosen.loads:
            for arc, share in totals.items():
                found[axes][arc] += total_bytes * count * share / paces[arc]
    return {axes: dict(arcs) for axes, arcs in found.items()}


def seconds_of_arcs(plan: Plan, rows: Iterable[Collective], arcs: Sequence[int]) -> dict[tuple[str, ...], list[float]]:
    """Return the seconds in a step that each of `arcs` sends, by the axes of the collectives in `rows` of `plan`.

    >>> seconds_of_arcs(plan, [], [0, 1])
    {}
    """
    found: dict[tuple[str, ...], list[float]] = {}
    for axes, busy in busy_seconds(plan, rows).items():
        routes = device_group(plan.mesh, plan.cluster, axes).routes
        assert isinstance(routes, Routes)
        found[axes] = [*_spread(routes, busy, arcs)]
    return found


def _spread(routes: Routes, busy: ByArc, arcs: Sequence[int]) -> Iterator[float]:
    """Yield the busy seconds of each of `arcs`. `busy` has only one of parallel or equivalent arcs."""
    fabric, fold = routes.fabric, routes.fold
    kinds = {fold.key(arc): arc for arc in busy} if fold else {}
    for arc in arcs:
        first = fabric.first_of(arc)
        seconds = busy.get(first)
        if seconds is None and fold:
            known = kinds.get(fold.key(first))
            seconds = busy[known] * fabric.paces[known] / fabric.paces[first] if known is not None else None
        yield (seconds or 0.0) * fabric.paces[first] * fabric.part_of(arc) / fabric.rates[arc]
