"""The cost of a layout from the figures of its sections: what `planc.cost.costed` finds row by row.

A search costs thousands of layouts that share most figures and asks for no rows. Both ways hide transfers by
`planc.cost.step.overlap.hide`, and agree but for the last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from planc.cost.memory.peak import GIB, with_reserve
from planc.cost.memory.state import PassingBytes, largest
from planc.cost.step.overlap import Transfers, hide
from planc.cost.step.section_cost import BothWays, Copies, Kept, Move, Moved, Sections, Stored, Update
from planc.cost.step.step_time import StageCost, Work, step_of, work_of
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.report import Step
from planc.pipeline.split import microbatch_copies
from planc.pipeline.timeline import run_schedule
from planc.sharding.stage_assignment import Division, copies_in, microbatches_each

T = TypeVar("T")
Load = dict[Section, int]
"""Copies of sections, on a rank or a stage."""


@dataclass(frozen=True)
class Layout:
    """A plan with the figures of its sections, its division over a pipeline and the seconds of a hand-over.

    `state_bytes` are those of ranks that differ, besides saved tensors; `offload_s` says what a rank's transfers to
    its host take beside seconds of compute. The replay is the same in every layer (`recompute` without `every`): ranks
    that hold as much are alike.
    """

    plan: Plan
    division: Division
    copies: Copies
    kept: Kept
    moved: Moved
    state_bytes: Sequence[float]
    handed_over_s: float
    offload_s: Callable[[int, float], float]

    @cached_property
    def work(self) -> Work:
        """Seconds of a step before its pipeline is run."""
        plan, division = self.plan, self.division
        waits = [self._waits(load) for load in division.loads]
        costs = [self._stage(sections, waits[load].inside) for load, sections in division.kinds]
        return work_of(
            plan,
            division.held,
            [costs[kind] for kind in division.kind],
            self.handed_over_s,
            tuple(waits[load].after_s for load in division.load),
            self._optimizer_s,
            self.offload_s,
        )

    def run(self) -> tuple[Step, float]:
        """The step with its pipeline run, and the GiB of the fullest device."""
        plan = self.plan
        timeline = run_schedule(plan.split, plan.pipeline, plan.microbatches, self.work.times)
        return step_of(plan, self.work, timeline.makespan_s), self.memory_gib(timeline.in_flight)

    def memory_gib(self, in_flight: Sequence[dict[int, int]]) -> float:
        """GiB of the fullest device, with so many microbatches of each virtual stage at each rank's fullest moment."""
        division, kept, state = self.division, self.kept.saved, self.state_bytes
        kinds = [sum([n * kept.get(s, 0.0) for s, n in sections.items()]) for _, sections in division.kinds]
        saved = [kinds[kind] for kind in division.kind]
        most = max(
            [
                state[load] + sum([n * saved[v] for v, n in flying.items()])
                for load, flying in zip(division.load, in_flight, strict=True)
            ]
        )
        return with_reserve(self.plan.cluster.chip, most) / GIB

    # One rank, by what it holds.

    def _updates(self, load: Load) -> list[tuple[int, Update]]:
        """Parameters on a rank, each with its copies there."""
        return _on(load, self.moved.updates, self.plan.model.blocks)

    def _optimizer_s(self, rank: int) -> float:
        return sum(n * update.seconds for n, update in self._updates(self.division.loads[self.division.load[rank]]))

    def _waits(self, load: Load) -> Waits:
        """A rank's transfers of state, as far as nothing hides them; see `planc.cost.step.overlap`."""
        copies, times = self.copies.of, self._times
        often, once = (self.moved.often, self.moved.once) if times > 1 else (((), ()), self._all_once)
        waits = Waits(load, times, self.moved.scalars_s, self.plan.cluster.chip.contention)
        forward_s = sum([n * copies[s].time.forward_s for s, n in load.items()])
        left_s = waits.hide(often[0], forward_s * times, times)
        waits.hide(once[0], left_s / times, 1)
        back_s = sum([n * copies[s].cover_back_s for s, n in load.items()])
        left_s = waits.hide(often[1], back_s * times, times)
        waits.hide(once[1], left_s / times, 1, self._shared(load), self.moved.shared_waits)
        return waits

    @cached_property
    def _times(self) -> int:
        return microbatches_each(self.plan)

    @cached_property
    def _all_once(self) -> BothWays:
        """With one microbatch, what moves for each of them moves once."""
        forward, back = zip(self.moved.often, self.moved.once, strict=True)
        return forward[0] + forward[1], back[0] + back[1]

    def _shared(self, load: Load) -> list[tuple[int, Update]]:
        """Parameters whose gradients two ranks of the pipeline sum: see `planc.sharding.collectives`."""
        plan = self.plan
        if plan.pipeline == 1:
            return []
        if microbatch_copies(plan.split) > 1:
            return self._updates(load)
        if ("first" in load) == ("last" in load):
            return []
        return [(1, update) for sections, update in self.moved.updates.items() if {"first", "last"} <= {*sections}]

    def _stage(self, sections: Load, waits: dict[Section, list[float]]) -> StageCost:
        """A virtual stage's seconds for one microbatch."""
        forward = backward = again = weight = waits_forward = waits_back = 0.0
        for s, n in sections.items():
            one, (forward_s, back_s) = self.copies.of[s], waits[s]
            time = one.time
            forward += n * time.forward_s
            backward += n * time.backward_s
            again += n * time.recompute_s
            weight += n * time.weight_s
            waits_forward += n * (one.forward_s - time.forward_s + forward_s)
            waits_back += n * (one.back_s - one.cover_back_s + back_s)
        return StageCost(forward, backward, again, weight, waits_forward, waits_back)


class Waits:
    """Seconds of a rank's transfers of state that nothing hides."""

    def __init__(self, load: Load, times: int, after_s: float, contention: float) -> None:
        self.load, self.times, self.contention = load, times, contention
        self.after_s = after_s
        """After the last microbatch."""
        self.inside: dict[Section, list[float]] = {s: [0.0, 0.0] for s in load}
        """Of one copy of a section for a microbatch, forward and all the rest."""

    def hide(
        self,
        moves: Sequence[Move],
        cover_s: float,
        calls: int,
        shared: Sequence[tuple[int, Update]] = (),
        shared_waits: bool = False,
    ) -> float:
        """Add what these moves, so many calls each, and the sums between ranks expose; returns what they leave of
        the cover."""
        if not moves and not shared:
            return cover_s
        load, group, inside = self.load, Transfers(), self.inside
        for m in moves:
            if m.section in load and not m.waited:
                n = load[m.section] * calls
                group.add(m.phase, n * m.seconds, n)
        for n, update in shared if not shared_waits else ():
            group.add("optimizer", n * update.shared_s, n)
        share, left_s = hide(group, cover_s, self.contention)
        for m in moves:
            if m.section in load:
                one_s = calls * (m.asked_s + (m.seconds if m.waited else share * m.seconds))
                if m.phase == "optimizer":
                    self.after_s += load[m.section] * one_s
                else:
                    inside[m.section][m.phase != "forward"] += one_s / self.times
        for n, update in shared:
            self.after_s += n * (update.asked_s + (update.shared_s if shared_waits else share * update.shared_s))
        return left_s


def _on(load: Load, by_sections: Mapping[Sections, T], blocks: Container[Section]) -> list[tuple[int, T]]:
    """What some sections use, with its copies on a rank that holds these."""
    found = [(copies_in(load, sections, blocks), one) for sections, one in by_sections.items()]
    return [(n, one) for n, one in found if n]


def resting_bytes(stored: Stored, load: Load, blocks: Container[Section]) -> float:
    """Bytes that are always on a rank that holds these sections."""
    return stored.communicators + sum([n * bytes_ for n, bytes_ in _on(load, stored.resting, blocks)])


def passing_on(stored: Stored, load: Iterable[Section]) -> PassingBytes:
    """Bytes of state that come and go on such a rank."""
    return largest([stored.passing[s] for s in load if s in stored.passing])
