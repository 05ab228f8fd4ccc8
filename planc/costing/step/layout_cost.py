"""The cost of one layout in a search, from the seconds and bytes of its sections (kinds of layer). Transfers and ranks
are costed as in `planc.costing.step.step_time`, but without rows of a report."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from planc.costing.step.optimizer import Sections, optimizer_s
from planc.costing.step.rank_cost import Load, RankCost, rank_cost, stage_cost
from planc.costing.step.section_cost import MicrobatchSeconds, SharedGradient, shared_group
from planc.costing.step.step_time import RankWork, rank_work, step_of
from planc.costing.step.transfers import StateTransfers
from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Plan
from planc.ir.report import Step
from planc.pipeline.timeline import Timeline, run_schedule
from planc.sharding.stage_assignment import Division, StageKinds, microbatches_each


@dataclass(frozen=True, slots=True)
class StateSeconds:
    """Seconds per step of parameters, gradients and moments: transfers, update, sums between pipeline ranks."""

    transfers: StateTransfers
    updates: dict[Sections, float]
    shared: tuple[SharedGradient, ...]


@dataclass(frozen=True)
class LayoutCost:
    """A plan with all that its step is computed from: seconds of its sections, its division into pipeline stages, and
    the seconds of a send between stages.

    `memory_gib` returns the memory (GiB) of the fullest device, given the simulated timeline. `offload_s` returns the
    exposed seconds of a pipeline rank's transfers to and from host memory. Its arguments are the rank, the seconds of
    the pipeline, which can hide these transfers, and the exposed seconds of once-per-step transfers.
    """

    plan: Plan
    division: Division
    compute: MicrobatchSeconds
    state: StateSeconds
    memory_gib: Callable[[Timeline], float]
    send_s: float
    offload_s: Callable[[int, float, float], float]

    @cached_property
    def work(self) -> RankWork:
        """The seconds of each part of the step, before its pipeline is simulated."""
        plan, division, sections = self.plan, self.division, self.compute.sections
        times = microbatches_each(plan)
        replayed = division.replayed
        ranks = [self._rank(*held, times) for held in zip(division.loads, replayed, division.stages, strict=True)]
        costs = [stage_cost(held, sections, ranks[load], replayed[load]) for load, held in division.kinds]
        return rank_work(
            plan,
            division.held,
            [costs[kind] for kind in division.kind],
            self.send_s,
            [ranks[load] for load in division.load],
            self._optimizer_s,
            self.offload_s,
        )

    @cached_property
    def timeline(self) -> Timeline:
        """The simulated pipeline."""
        plan = self.plan
        return run_schedule(plan.split, plan.pipeline, plan.microbatches, self.work.times)

    def run(self) -> tuple[Step, float]:
        """Simulate the pipeline; return the step and its peak memory (GiB)."""
        step = step_of(self.plan, self.work, self.timeline.makespan_s)
        return step, self.memory_gib(self.timeline)

    def _rank(self, load: Load, replayed: Load, stages: StageKinds, times: int) -> RankCost:
        state, chip = self.state, self.plan.cluster.chip
        shared = shared_group(self.plan, state.shared, load) if state.shared else None
        return rank_cost(load, replayed, stages, times, self.compute.sections, state.transfers, chip.contention, shared)

    def _optimizer_s(self, rank: int) -> float:
        load = self.division.loads[self.division.load[rank]]
        return optimizer_s(self.state.updates, load, self.plan.model.blocks)
