"""The ways of microbatches through a pipeline: ranks that are alike, and the stages around them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Section
from planc.ir.plan import Plan, Split
from planc.pipeline.in_flight import in_flight_lower_bound
from planc.pipeline.split import microbatch_copies, schedule_of, shape_of, splits_backward, stages_of
from planc.sharding.stage_assignment import Division, division_of, sections_of


@dataclass(frozen=True, slots=True)
class Way:
    """Sections on ranks that are alike, by their copies, and those of the stages around them.

    The first microbatch of the last one comes through `before`; where backwards are whole, its last one goes
    back through them after all that the rank does. A backward comes to one of the ranks through all stages
    and back through `after` at least, and then through `beneath`.
    """

    on: dict[Section, int]
    first: int
    """The first of the ranks."""
    before: dict[Section, int]
    after: dict[Section, int]
    beneath: dict[Section, int]


class Passage:
    """A pipeline over some ranks, or none: what all layouts with it have in common."""

    def __init__(self, plan: Plan) -> None:
        self.split, self.ranks = plan.split, plan.pipeline
        self.stages = [sections_of(plan, v) for v in range(len(plan.stages))]
        self.division: Division = division_of(plan)
        self.copies = microbatch_copies(plan.split)
        """Ranks that share a stage's microbatches."""
        self.straight = straight(plan.split)
        """A microbatch comes to rank r's first stage through the stages 0 to r - 1, and each to all stages."""
        self.apart = plan.split is not None and splits_backward(plan.split)
        """Gradients of weights are actions of their own."""
        self._in_rounds = plan.split is not None and schedule_of(plan.split).in_rounds
        self.ways = tuple(self._ways(plan))
        """The ranks that differ in what they hold, one for each of the division's loads and in their order; of those
        alike, the last."""
        self._held: dict[tuple[int, int, int], dict[Section, int]] = {}

    def _ways(self, plan: Plan) -> Iterator[Way]:
        held = self.division.held
        alike: dict[int, list[int]] = {}
        for rank, load in enumerate(self.division.load):
            alike.setdefault(load, []).append(rank)
        ends = (0, *itertools.accumulate(end - begin for begin, end in plan.stages))
        for load, ranks in alike.items():

            def path(rank: int) -> int:
                return ends[-1] - ends[max(held[rank]) + 1] + (not self.apart) * ends[min(held[rank])]

            turn = max(ranks, key=path)
            yield Way(
                on=self.division.loads[load],
                first=ranks[0],
                before=self._once(range(min(held[ranks[-1]]))),
                after=self._once(range(max(held[turn]) + 1, len(self.stages))),
                beneath=self._once(range(min(held[turn]))),
            )

    def _sum(self, stages: Mapping[int, int]) -> dict[Section, int]:
        """Copies of each section in these virtual stages together, each so many times."""
        total: dict[Section, int] = {}
        for v, times in stages.items():
            for s, n in self.stages[v].items():
                total[s] = total.get(s, 0) + times * n
        return total

    def _once(self, stages: Iterable[int]) -> dict[Section, int]:
        return self._sum(dict.fromkeys(stages, 1))

    def held(self, microbatches: int, way: int) -> dict[Section, int]:
        """Copies of each section, each for a microbatch, whose saved tensors the first rank of a way holds at least at
        its fullest moment."""
        if self.split is None:
            return self.ways[way].on
        period = shape_of(self.split, self.ranks, microbatches).round if self._in_rounds else self.ranks
        key = min(microbatches, 2 * period), period, way
        known = self._held.get(key)
        if known is None:
            most = in_flight_lower_bound(self.split, self.ranks, microbatches, self.ways[way].first)
            known = self._held[key] = self._sum(most)
        return known


def straight(split: Split | None) -> bool:
    """Whether a microbatch comes to rank r's first stage through the stages 0 to r - 1."""
    return split is not None and schedule_of(split).copies == 1 and not split.order


def end(split: Split | None, ranks: int) -> tuple[int, int]:
    """Layers before the last rank's first stage and on this rank; 0 where a microbatch comes another way."""
    if split is None or not straight(split):
        return 0, 0
    held = stages_of(split, ranks, ranks - 1)
    return split.stages[ranks - 1][0], sum(split.stages[v][1] - split.stages[v][0] for v in held)
