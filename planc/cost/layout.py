"""The cost of a layout from the figures of its sections: what `planc.cost.costed` finds row by row.

A search costs thousands of layouts that share most figures and asks for no rows. Both ways hide transfers by
`planc.cost.exposed.hide`, and agree but for the last digits.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import cached_property

from planc.cost.exposed import Transfers, hide
from planc.cost.figures import Copies, Rest, Stored
from planc.cost.memory import GIB, PassingBytes, at_the_fullest, largest, replay_buffers, with_reserve
from planc.cost.offload import offload_s
from planc.cost.schedule import run_schedule
from planc.cost.step import StageCost, Work, step_of, work_of
from planc.diag.light import dataclass
from planc.ir.model import Section
from planc.ir.report import Step
from planc.ir.sharding import Sharded
from planc.schedules import microbatch_copies
from planc.sharding.stages import Division, copies_in, microbatches_each


@dataclass(frozen=True)
class Layout:
    """A plan with the figures of its sections, its division over a pipeline, and the seconds of a hand-over.

    Its replay is the same in every layer (`recompute` without `every`): ranks that hold as much are alike.
    """

    sharded: Sharded
    division: Division
    copies: Copies
    stored: Stored
    handed_over_s: float

    @cached_property
    def work(self) -> Work:
        """Seconds of a step before its pipeline is run."""
        plan, division = self.sharded.plan, self.division
        waits = [self._waits(load) for load in division.loads]
        costs = [self._stage(sections, waits[load].inside) for load, sections in division.kinds]
        return work_of(
            plan,
            [costs[kind] for kind in division.kind],
            self.handed_over_s,
            tuple(waits[load].after_s for load in division.load),
            self._optimizer_s,
            self._offload_s,
        )

    def run(self) -> tuple[Step, float]:
        """The step with its pipeline run, and the GiB of the fullest device."""
        plan = self.sharded.plan
        timeline = run_schedule(plan.split, plan.pipeline, plan.microbatches, self.work.times)
        return step_of(plan, self.work, timeline.makespan_s), self.memory_gib(timeline.in_flight)

    def memory_gib(self, in_flight: Sequence[dict[int, int]]) -> float:
        """GiB of the fullest device, with so many microbatches of each virtual stage at each rank's fullest moment."""
        division, copies = self.division, self.copies.of
        state = [self._state_bytes(load) for load in division.loads]
        saved = [sum(n * copies[s].saved_bytes for s, n in sections.items()) for _, sections in division.kinds]
        most = max(
            state[load] + sum(n * saved[division.kind[v]] for v, n in flying.items())
            for load, flying in zip(division.load, in_flight, strict=True)
        )
        return with_reserve(self.sharded.plan.cluster.chip, most) / GIB

    # One rank, by what it holds.

    def _state_bytes(self, load: dict[Section, int]) -> float:
        """Bytes of a rank besides saved tensors."""
        stored = self.stored
        resting = resting_bytes(stored, load, self.sharded.plan.model.blocks)
        return resting + at_the_fullest(passing_on(stored, load), replay_buffers(self.copies.replays, load))

    def _rests(self, load: dict[Section, int]) -> list[tuple[int, Rest]]:
        """Parameters on a rank, each with its copies there."""
        return rests_on(self.stored, load, self.sharded.plan.model.blocks)

    def _optimizer_s(self, rank: int) -> float:
        return sum(n * rest.update_s for n, rest in self._rests(self.division.loads[self.division.load[rank]]))

    def _offload_s(self, rank: int, compute_s: float) -> float:
        return offload_s(self.sharded, rank, compute_s)

    def _waits(self, load: dict[Section, int]) -> Waits:
        """A rank's transfers of state, as far as nothing hides them; see `planc.cost.exposed`."""
        plan, copies, stored = self.sharded.plan, self.copies.of, self.stored
        times, contention = microbatches_each(plan), plan.cluster.chip.contention
        waits = Waits({s: [0.0, 0.0] for s in load}, stored.scalars_s)
        for back in (False, True):
            cover_s = sum(n * (copies[s].cover_back_s if back else copies[s].time.forward_s) for s, n in load.items())
            left_s = cover_s * times
            for often in (True, False):
                moves = [
                    (s, n, move)
                    for s, n in load.items()
                    for move in stored.moves[s]
                    if (move.phase != "forward") == back and (move.often and times > 1) == often
                ]
                group: Transfers = {}
                for _, n, move in moves:
                    if not move.waited:
                        calls = n * times if move.often else n
                        seconds, most = group.get(move.phase, (0.0, 0))
                        group[move.phase] = seconds + move.seconds * calls, max(most, calls)
                shared = self._shared(load) if back and not often else []
                if shared and not stored.shared_waits:
                    seconds, most = group.get("optimizer", (0.0, 0))
                    sums_s = sum(n * rest.shared_s for n, rest in shared)
                    group["optimizer"] = seconds + sums_s, max(most, *(n for n, _ in shared))
                share, left_s = hide(group, left_s if often else left_s / times, contention)
                for s, n, move in moves:
                    calls = times if move.often else 1
                    one_s = calls * ((1.0 if move.waited else share) * move.seconds + move.asked_s)
                    if move.phase == "optimizer":
                        waits.after_s += n * one_s
                    else:
                        waits.inside[s][back] += one_s / times
                for n, rest in shared:
                    waits.after_s += n * ((1.0 if stored.shared_waits else share) * rest.shared_s + rest.asked_s)
        return waits

    def _shared(self, load: dict[Section, int]) -> list[tuple[int, Rest]]:
        """Parameters whose gradients two ranks of the pipeline sum: see `planc.sharding.collectives`."""
        plan = self.sharded.plan
        if plan.pipeline == 1:
            return []
        if microbatch_copies(plan.split) > 1:
            return self._rests(load)
        if ("first" in load) == ("last" in load):
            return []
        return [(1, rest) for sections, rest in self.stored.rests.items() if {"first", "last"} <= {*sections}]

    def _stage(self, sections: dict[Section, int], waits: dict[Section, list[float]]) -> StageCost:
        """A virtual stage's seconds for one microbatch."""
        cost = StageCost()
        for s, n in sections.items():
            one, (forward_s, back_s) = self.copies.of[s], waits[s]
            time = one.time
            cost.forward_s += n * time.forward_s
            cost.backward_s += n * time.backward_s
            cost.recompute_s += n * time.recompute_s
            cost.weight_s += n * time.weight_s
            cost.exposed_forward_s += n * (one.forward_s - time.forward_s + forward_s)
            cost.exposed_backward_s += n * (one.back_s - one.cover_back_s + back_s)
        return cost


@dataclass
class Waits:
    """Seconds of a rank's transfers that nothing hides: of one copy of a section for a microbatch, forward and all
    the rest, and after the last microbatch."""

    inside: dict[Section, list[float]]
    after_s: float


def rests_on(stored: Stored, load: dict[Section, int], blocks: Container[Section]) -> list[tuple[int, Rest]]:
    """Parameters on a rank that holds these sections, each with its copies there."""
    found = [(copies_in(load, sections, blocks), rest) for sections, rest in stored.rests.items()]
    return [(n, rest) for n, rest in found if n]


def resting_bytes(stored: Stored, load: dict[Section, int], blocks: Container[Section]) -> float:
    """Bytes that are always on a rank that holds these sections."""
    return stored.communicators_bytes + sum([n * rest.bytes_ for n, rest in rests_on(stored, load, blocks)])


def passing_on(stored: Stored, load: Iterable[Section]) -> PassingBytes:
    """Bytes of state that come and go on such a rank."""
    return largest(stored.passing[s] for s in load if s in stored.passing)
