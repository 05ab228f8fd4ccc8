"""Seconds of the stages of a pipeline in lockstep, whose ranks run one program.

In each tick every rank runs as many layers as the longest stage. All ranks share the embedding and the head. A tick
waits for the gradients that a backward sends, as no other work can overlap with them. The formulas are derived in
docs/reference/cost-model.md, "Pipelines in lockstep".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from planc.costing.compute.section import SectionTime
from planc.costing.step.rank_cost import StageCost
from planc.costing.step.transfers import Transfer
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.sharding.stage_assignment import StageKinds, replayed_copies, sections_of


class LockstepCost:
    """The cost of a pipeline in lockstep: all ranks run one program, as XLA compiles it."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._blocks = plan, plan.model.blocks
        stages = range(len(plan.stages))
        self.chunks = len(plan.stages) // plan.pipeline
        self._longest = max(stages, key=lambda v: plan.stages[v][1] - plan.stages[v][0])

    def sections(self, stage: int) -> dict[Section, int]:
        """Return the number of layers of each kind that a rank runs for any virtual `stage`: in lockstep, those of the
        longest (docs/reference/cost-model.md, "Pipelines in lockstep")."""
        assert stage < len(self._plan.stages)
        return {s: n for s, n in sections_of(self._plan, self._longest).items() if s in self._blocks}

    def stages(self) -> StageKinds:
        """Return the number of virtual stages on a rank, by the layers of a stage: in lockstep, of the longest one."""
        return {tuple(self.sections(0).items()): self.chunks}

    def load(self, rank: int) -> dict[Section, int]:
        """Return the number of layers of each kind that pipeline rank `rank` runs for one microbatch. Embedding and
        head are left out, since all ranks share them."""
        assert rank < self._plan.pipeline
        return {s: n * self.chunks for s, n in self.sections(0).items()}

    def replayed(self, rank: int) -> dict[Section, int]:
        """Return the number of layers of each kind that the backward recomputes on pipeline rank `rank`."""
        if self._plan.recompute.every == 1:
            return self.load(rank)
        return {s: n for s, n in replayed_copies(self._plan, rank).items() if s in self._blocks}

    def useful(self, transfers: Sequence[Transfer]) -> list[Transfer]:
        """Return `transfers` without the calls in ticks that have no microbatch for the rank. Those are part of the
        rank's idle time (docs/reference/cost-model.md, "Pipelines in lockstep")."""
        ranks = self._plan.pipeline
        each = self.chunks * self._plan.microbatches
        share = each / (each + ranks - 1)  # each rank idles in ranks - 1 ticks of a pass
        return [t._replace(calls=t.calls * share) if self._in_ticks(t) else t for t in transfers]

    def _in_ticks(self, transfer: Transfer) -> bool:
        return transfer.section in self._blocks and transfer.per == "microbatch"

    def stage_costs(
        self, stages: Mapping[int, StageCost], sections: Mapping[Section, SectionTime], send_s: float
    ) -> list[StageCost]:
        """Return the seconds of one microbatch on each virtual stage (cost-model.md, "Pipelines in lockstep").

        Args:
            stages: seconds of the layers of each virtual stage.
            sections: seconds of compute of one copy of each section.
            send_s: seconds to send a microbatch from one stage to the next.
        """
        tick = _sum([stages[self._longest], StageCost(exposed_backward_s=send_s)])
        ends = [_compute(sections[s]) for s in ("first", "last") if s in sections]
        turning = _sum([tick, _sum(ends, 1 / self._plan.pipeline)])
        last_chunk = len(stages) - self._plan.pipeline  # its ticks count the share of embedding and head
        return [turning if v >= last_chunk else tick for v in range(len(stages))]


def _compute(time: SectionTime) -> StageCost:
    return StageCost(time.forward_s, time.backward_s, time.recompute_s, time.weight_s)


def _sum(costs: Sequence[StageCost], share: float = 1.0) -> StageCost:
    return StageCost(**{f.name: share * sum(getattr(cost, f.name) for cost in costs) for f in fields(StageCost)})
