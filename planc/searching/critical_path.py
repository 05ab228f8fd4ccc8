"""Values that all layouts with the same pipeline share: critical paths, microbatches in flight."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from planc.costing.step.section_cost import MicrobatchSeconds
from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import Cache, Computed, cached_on
from planc.ir.model import Section
from planc.ir.plan import Plan, Split
from planc.pipeline.in_flight import in_flight_lower_bound
from planc.pipeline.lower_bound import CriticalPaths
from planc.pipeline.split import microbatch_copies, schedule_of, shape_of, stages_of
from planc.pipeline.stage_times import StageTimes
from planc.sharding.stage_assignment import Division, division_of, sections_of


@dataclass(frozen=True, slots=True)
class RankClass:
    """Pipeline ranks with the same sections: layers of each kind, and what is before or after them."""

    on: dict[Section, int]
    """Copies of each section on one of the ranks."""
    first: int
    """The first of the ranks."""


class PipelinePaths:
    """The values that all layouts with the same pipeline (or all without one) have in common."""

    def __init__(self, plan: Plan) -> None:
        self.split, self.ranks = plan.split, plan.pipeline
        self.stages = [sections_of(plan, v) for v in range(len(plan.stages))]
        self.division: Division = division_of(plan)
        self.copies = microbatch_copies(plan.split)
        """Number of ranks that share a stage's microbatches."""
        self.critical = CriticalPaths(plan.split, self.division.held, self.division.kind)
        self._first_of_kind = [self.division.kind.index(kind) for kind in range(len(self.division.kinds))]
        self._in_rounds = plan.split is not None and schedule_of(plan.split).in_rounds
        self.classes = tuple(
            RankClass(on, self.division.load.index(load)) for load, on in enumerate(self.division.loads)
        )
        """The division's loads, in their order."""
        self.cache = Cache()
        self.held: Computed[int, list[dict[Section, int]]] = Computed(self._held_by_class)
        """`held_of_class` of every class, by microbatches."""

    def kind_times(self, times: StageTimes) -> StageTimes:
        """Return the seconds of one microbatch on each kind of stage. `times` has the seconds on every virtual
        stage."""
        at = self._first_of_kind
        return StageTimes(
            tuple([times.forward_s[v] for v in at]),
            tuple([times.backward_s[v] for v in at]),
            tuple([times.weight_s[v] for v in at]),
            times.send_s,
        )

    def compute_times(self, seconds: MicrobatchSeconds, within: Collection[Section] | None = None) -> StageTimes:
        """Return the compute seconds of one microbatch on each kind of stage, without transfers of state and sends.

        `seconds` has the seconds of each section of the model. `within` restricts the sum to some sections; None: all.
        """
        forward_s, backward_s, sections = seconds.forward_s, seconds.backward_s, seconds.sections
        kinds = [on for _, on in self.division.kinds]
        if within is not None:
            kinds = [{s: n for s, n in on.items() if s in within} for on in kinds]
        return StageTimes(
            tuple([sum([n * forward_s[s] for s, n in on.items()]) for on in kinds]),
            tuple([sum([n * backward_s[s] for s, n in on.items()]) for on in kinds]),
            tuple([sum([n * sections[s].time.weight_s for s, n in on.items()]) for on in kinds]),
        )

    def _sections_of_stages(self, stages: Mapping[int, int]) -> dict[Section, int]:
        """Return the number of layers of each section, summed over `stages`, which maps a virtual stage to a
        multiplier."""
        total: dict[Section, int] = {}
        for v, times in stages.items():
            for s, n in self.stages[v].items():
                total[s] = total.get(s, 0) + times * n
        return total

    def _held_by_class(self, microbatches: int) -> list[dict[Section, int]]:
        return [self.held_of_class(microbatches, number) for number in range(len(self.classes))]

    def held_of_class(self, microbatches: int, number: int) -> dict[Section, int]:
        """Return a lower bound on the activations that a rank holds at its memory peak, in a step of `microbatches`.
        The rank is the first one of `classes[number]`.

        The result maps a section to a number of layers: those whose activations, for one microbatch, are saved.
        """
        if self.split is None:
            return self.classes[number].on
        period = shape_of(self.split, self.ranks, microbatches).round if self._in_rounds else self.ranks
        return self._sections_in_flight(min(microbatches, 2 * period), period, number, microbatches)

    @cached_on(lambda paths, fewest, period, number, _: (paths.cache, (fewest, period, number)))
    def _sections_in_flight(self, fewest: int, period: int, number: int, microbatches: int) -> dict[Section, int]:
        """Return the result of `held_of_class` for a pipeline. It is cached by `fewest`, at most two periods of
        microbatches."""
        assert self.split is not None
        return self._sections_of_stages(
            in_flight_lower_bound(self.split, self.ranks, microbatches, self.classes[number].first)
        )


def last_rank_layers(split: Split | None, ranks: int) -> tuple[int, int]:
    """Return the number of layers before the last rank's first stage, and the number of layers on the last rank.

    Both are 0 without a pipeline (`split` is None), or if microbatches do not all start on the first of the `ranks`
    (dualpipe, schedules from a file).
    """
    if split is None or split.order or microbatch_copies(split) > 1:
        return 0, 0
    held = stages_of(split, ranks, ranks - 1)
    return split.stages[ranks - 1][0], sum(split.stages[v][1] - split.stages[v][0] for v in held)
