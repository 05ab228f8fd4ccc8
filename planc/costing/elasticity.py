"""Elasticities of step time: percent saved per percent by which one bandwidth, latency or rate of the machine improves.

Each figure is improved alone, and the step is timed again with the same collectives. The figure with the largest saving
is the most useful upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planc.costing.costed import CostedPlan, cost_plan
from planc.costing.step.step_time import step_time
from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.collective import Collective
from planc.ir.hardware import Cluster, Link
from planc.ir.sharding import Sharded

BETTER = 0.01
"""Relative improvement of a figure, a fraction."""
Figure = Callable[[float], Cluster]
"""Returns the cluster with one figure improved by a factor."""


@dataclass(frozen=True, kw_only=True)
class Elasticity(Value):
    """How much one figure of the machine, such as a bandwidth, affects step time."""

    figure: str
    elasticity: float
    """Percent of step time saved for each percent by which the figure improves."""
    twice_s: float
    """Seconds saved per step when the figure is twice as good."""


def elasticities(costed: CostedPlan) -> tuple[Elasticity, ...]:
    """Return the figures of the machine that affect the step of `costed`, each with its elasticity, largest saving
    first.

    >>> first = elasticities(costed)[0]
    >>> first.figure, f"{first.elasticity:.2f}"  # most of the step is matmuls
    ('matmul rate', '0.68')
    """
    found, before = [], costed.step.time_s
    for name, figure in figures(costed.sharded.plan.cluster):
        little_s, twice_s = (_step_s(costed, figure(times)) for times in (1 + BETTER, 2.0))
        if abs(twice_s - before) > 1e-9 * before:
            elasticity = (before - little_s) / before / BETTER
            found.append(Elasticity(figure=name, elasticity=elasticity, twice_s=before - twice_s))
    return tuple(sorted(found, key=lambda one: (-one.twice_s, one.figure)))


def _step_s(costed: CostedPlan, cluster: Cluster) -> float:
    return step_time(*_on(costed, cluster)).step.time_s


def cost_on(costed: CostedPlan, cluster: Cluster) -> CostedPlan:
    """Return the plan of `costed` on `cluster`, its own with one of the `figures` changed, with the same
    collectives."""
    return cost_plan(*_on(costed, cluster), backend=costed.backend)


def _on(costed: CostedPlan, cluster: Cluster) -> tuple[Sharded, tuple[Collective, ...] | None]:
    sharded = costed.sharded
    rows = costed.timed.rows if costed.backend is not None else None
    return replace(sharded, plan=replace(sharded.plan, cluster=cluster)), rows


def figures(cluster: Cluster) -> Iterator[tuple[str, Figure]]:
    """Yield the name of each bandwidth, latency and rate, and a function that returns the cluster with it improved."""
    chip = cluster.chip

    def rate(times: float) -> Cluster:
        return replace(cluster, chip=replace(chip, flops_per_s={d: f * times for d, f in chip.flops_per_s.items()}))

    def memory(times: float) -> Cluster:
        faster = chip.memory_bandwidth_bytes_per_s * times
        return replace(cluster, chip=replace(chip, memory_bandwidth_bytes_per_s=faster))

    yield "matmul rate", rate
    yield "memory bandwidth", memory
    if cluster.own_graph is not None:
        for at, link in enumerate(cluster.own_graph.links):
            yield f"{link.name} bandwidth", lambda times, at=at: _own(cluster, at, times, 1)  # type: ignore[misc]
            yield f"{link.name} latency", lambda times, at=at: _own(cluster, at, 1, times)  # type: ignore[misc]
        return
    yield f"{cluster.link.name} bandwidth", lambda times: replace(cluster, link=_better(cluster.link, times, 1))
    yield f"{cluster.link.name} latency", lambda times: replace(cluster, link=_better(cluster.link, 1, times))
    for at, level in enumerate(cluster.levels):
        yield f"{level.name} bandwidth", lambda times, at=at: _level(cluster, at, times, 1)  # type: ignore[misc]
        yield f"{level.name} latency", lambda times, at=at: _level(cluster, at, 1, times)  # type: ignore[misc]


def _better(link: Link, bandwidth: float, latency: float) -> Link:
    return replace(
        link,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * bandwidth,
        back_bandwidth_bytes_per_s=link.back_bandwidth_bytes_per_s * bandwidth,
        latency_s=link.latency_s / latency,
    )


def _own(cluster: Cluster, at: int, bandwidth: float, latency: float) -> Cluster:
    assert cluster.own_graph is not None
    links = [*cluster.own_graph.links]
    links[at] = _better(links[at], bandwidth, latency)
    return replace(cluster, own_graph=replace(cluster.own_graph, links=(*links,)))


def _level(cluster: Cluster, at: int, bandwidth: float, latency: float) -> Cluster:
    levels = [*cluster.levels]
    level = levels[at]
    levels[at] = replace(
        level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * bandwidth, latency_s=level.latency_s / latency
    )  # fmt: skip
    return replace(cluster, levels=(*levels,))
