"""Published runs costed as any plan is: propagation, collectives, cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from planc.checks import assume_checked, broken_rule
from planc.costing import CostedPlan, cost_plan
from planc.costing.step.step_time import step_time
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import Collective
from planc.ir.hardware import Cluster
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives
from planc.sharding.propagate import propagate
from tests.lab.published.plans import plan_of
from tests.lab.published.rows import Row, measured_s


@dataclass(frozen=True)
class Prepared:
    """A row with everything that does not depend on hardware parameters, for the many evaluations of a fit."""

    row: Row
    sharded: Sharded
    collectives: tuple[Collective, ...]
    measured_s: float

    def cost(self, change: Callable[[Cluster], Cluster] | None = None) -> CostedPlan:
        """The cost on the row's machine, or on what `change` makes of it."""
        return cost_plan(self._on_cluster(change), self.collectives)

    def step_s(self, change: Callable[[Cluster], Cluster] | None = None) -> float:
        """Seconds of the step alone; `change` replaces the numbers of its machines, None leaves them."""
        return step_time(self._on_cluster(change), self.collectives).step.time_s

    def _on_cluster(self, change: Callable[[Cluster], Cluster] | None) -> Sharded:
        """The layouts on another machine."""
        if change is None:
            return self.sharded
        before = self.sharded.plan
        plan = replace(before, cluster=change(before.cluster))
        plan.cache.share(before.cache)
        return replace(self.sharded, plan=plan)


@dataclass(frozen=True)
class Predicted:
    """A row's step time and memory, published and predicted."""

    row: Row
    measured_s: float
    predicted_s: float
    memory_gib: float
    needed_gib: float = 0.0
    """The least that the fullest device holds, by which `planc check` says that a plan does not fit."""
    capacity_gib: float = 0.0
    rules_broken: bool = False
    """True if a rule about the plan alone finds an error."""

    @property
    def over(self) -> float:
        """Share of a device's memory by which the run, which ran, is said not to fit; 0 for one that fits."""
        return max(0.0, self.needed_gib / self.capacity_gib - 1) if self.capacity_gib else 0.0

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, less one; None where the row has none."""
        return None if self.row.memory_gib is None else self.memory_gib / self.row.memory_gib - 1


def prepare(row: Row) -> Prepared:
    """The plan of `row` with its layouts and collectives derived."""
    sharded = propagate(assume_checked(plan_of(row)))
    return Prepared(row, sharded, semantic_collectives(sharded), measured_s(row))


def predict(rows: Iterable[Row]) -> list[Predicted]:
    """Predicted step and memory of each of `rows`, in order."""
    return [predicted(prepare(row)) for row in rows]


def predicted(one: Prepared) -> Predicted:
    """A row's step and memory on its machine.

    Published peaks are those of the framework's allocator, without the context and the communicators.
    """
    costed = one.cost()
    worst = costed.memory.per_device_gib
    context = one.sharded.plan.cluster.chip.runtime_bytes / 2**30
    return Predicted(
        one.row,
        one.measured_s,
        costed.step.time_s,
        worst.total - worst.comm_buffers - context,
        needed_gib=costed.lower_bound_gib,
        capacity_gib=costed.memory.capacity_gib,
        rules_broken=broken_rule(one.sharded.plan) is not None,
    )


def timed(one: Prepared, change: Callable[[Cluster], Cluster]) -> Predicted:
    """A row's step alone, on what `change` makes of its machine; no memory."""
    return Predicted(one.row, one.measured_s, one.step_s(change), 0.0)
