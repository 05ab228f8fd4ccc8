"""What a layout takes at least: less time or memory than this it cannot have, whatever the rest of the cost says.

Layouts are bounded from the coarse to the fine, each bound at least the one before it:

    family   a mesh, what is run again, a batch: the work of all layers, shared by the ranks evenly, and the way
             of the first microbatch to the last rank
    shape    with a pipeline: the busiest rank's compute and the transfers that activations wait for, the way of
             the first and last microbatch through the stages before it, and what the first rank saves
    point    with what is stored where: transfers of parameters and gradients as far as compute does not hide
             them, the optimizer, and the state with the buffers that come and go

They are made of figures of one copy of a section, which many layouts share.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from planc.cost.exposed import Transfers, hide
from planc.cost.memory import (
    GIB,
    at_the_fullest,
    replay_buffers,
    state_buffers,
    with_reserve,
)
from planc.cost.schedule import held_at_least
from planc.diag.light import dataclass
from planc.ir.collective import Phase
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.schedules import microbatch_copies
from planc.search.figures import Copies, Moves, Spans, State, copies_of, moves_of, states_of
from planc.search.space import Family, Pipeline, Point, Space
from planc.search.ways import Way, apart, end, straight, ways_through
from planc.sharding import propagate
from planc.sharding.stages import sections_of

SHAVED = 1 - 1e-12
"""Sums are rounded: in another order they differ in the last digits."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds of a step and GiB of the fullest device, at least."""

    time_s: float
    memory_gib: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A family with a pipeline: what all its points have in common."""

    family: Family
    pipeline: Pipeline | None
    ways: tuple[Way, ...]
    copies: Copies
    microbatches: int
    times: int
    """Microbatches that a rank runs on each stage."""
    straight: bool
    """A microbatch comes to rank r's first stage through the stages 0 to r - 1, and each to all stages."""
    apart: bool
    """Gradients of weights are actions of their own."""


class Bounds:
    """Lower bounds of the points of a space, from figures that many points share."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._names = [a.name for a in space.plan.mesh.axes]
        again = {f.span for f in space.free if f.kind == "recompute"}
        self._stored = [tuple(v for at, v in one.values.items() if at not in again) for one in space.variants]
        """What is stored where, of each variant, in its words."""
        self._contention = space.plan.cluster.chip.contention
        self._tied = any({"first", "last"} <= {*p.sections} for p in space.plan.model.params)
        self._propagated: dict[object, Sharded] = {}
        self._copies: dict[object, Copies] = {}
        self._alike: dict[object, Sharded] = {}
        self._states: dict[object, dict[Section, State]] = {}
        self._moves: dict[object, Moves] = {}
        self._spans: Spans = {}
        self._ways: dict[object, tuple[Way, ...]] = {}
        self._stages: dict[object, list[dict[Section, int]]] = {}
        self._last_ranks: dict[int, set[tuple[int, int]]] = {}
        self._data_axes: dict[int, tuple[str, ...]] = {}
        self._state_buffers: dict[object, tuple[float, float]] = {}
        self._replay_buffers: dict[object, tuple[float, float]] = {}

    def sharded(self, point: Point) -> Sharded:
        """The layouts of a point: those of any plan with the same sentences and the same axes in use."""
        plan = self.space.plan_of(point)
        key = (point.variant, *(n > 1 for n in point.sizes))
        known = self._propagated.get(key)
        if known is None:
            known = self._propagated[key] = propagate(plan)
        return known.resized(plan)

    # Families.

    @cached_property
    def alike(self) -> list[tuple[int, ...]]:
        """Variants that differ in what is stored where alone, as far as time and saved tensors go."""
        found: dict[object, list[int]] = {}
        for i, variant in enumerate(self.space.variants):
            narrow = i if variant.plan.quantize else -1  # narrow copies of weights last as long as gathered ones
            found.setdefault((variant.recompute, self._data(i), narrow), []).append(i)
        return [tuple(variants) for variants in found.values()]

    def of_family(self, family: Family) -> float:
        """Least seconds of a step: ranks take no less than their mean, nor than the last one."""
        ranks, copies, times = self.ranks(family.sizes), self._copies_of(family), self._microbatches(family)
        last = min(before * copies.forward_s + times * on * copies.layer_s for before, on in self._ends(ranks))
        return max(times * copies.whole_s / ranks, last) * SHAVED

    def _ends(self, ranks: int) -> set[tuple[int, int]]:
        """Layers before the last rank's first stage and on this rank, for each pipeline of so many ranks."""
        known = self._last_ranks.get(ranks)
        if known is None:
            splits = [p.split if p is not None else None for p in self.space.pipelines(ranks)]
            known = self._last_ranks[ranks] = {end(split, ranks) for split in splits}
        return known

    # Shapes.

    def shapes(self, family: Family) -> Iterator[Shape]:
        """The family with each pipeline that takes its microbatches."""
        ranks, microbatches = self.ranks(family.sizes), self._microbatches(family)
        for pipeline in self.space.pipelines(ranks):
            if pipeline is None or self.space.fits_schedule(pipeline, ranks, microbatches):
                yield self._shape(family, pipeline, microbatches)

    def _shape(self, family: Family, pipeline: Pipeline | None, microbatches: int) -> Shape:
        split = pipeline.split if pipeline else None
        return Shape(
            family=family,
            pipeline=pipeline,
            ways=self._ways_of(family, pipeline),
            copies=self._copies_of(family),
            microbatches=microbatches,
            times=microbatches // microbatch_copies(split),
            straight=straight(split),
            apart=apart(split),
        )

    def saved_gib(self, shape: Shape) -> float:
        """Saved by the first rank, whatever is stored where."""
        return self._saved_bytes(shape, shape.ways[0]) / GIB * SHAVED

    def _saved_bytes(self, shape: Shape, way: Way) -> float:
        """Of the microbatches that the first of some alike ranks holds at once."""
        pipeline, copies = shape.pipeline, shape.copies.of
        if pipeline is None:
            return sum(n * copies[s].saved_bytes for s, n in way.on.items())
        held = held_at_least(pipeline.split, self.ranks(shape.family.sizes), shape.microbatches, way.first)
        key = pipeline.split.stages
        stages = self._stages.get(key)
        if stages is None:
            plan = self._plan_of(shape.family, pipeline)
            stages = self._stages[key] = [sections_of(plan, v) for v in range(len(plan.stages))]
        return sum(count * n * copies[s].saved_bytes for v, count in held.items() for s, n in stages[v].items())

    def passes_s(self, shape: Shape) -> float:
        """Seconds of all microbatches on the busiest rank, and of the first and last one around it."""
        copies, most = shape.copies.of, 0.0
        for way in shape.ways:
            busy_s = back_s = 0.0
            for s, n in way.on.items():
                busy_s += shape.times * n * (copies[s].forward_s + copies[s].back_s)
                back_s += shape.times * n * copies[s].back_s
            most = max(most, busy_s + _way_s(shape, way), back_s + _turn_s(shape, way))
        return most * SHAVED

    # Points.

    def points(self, shape: Shape) -> Iterator[tuple[float, Point]]:
        """The shape with everything that may be stored where, each with the GiB of its fullest device."""
        family, saved = shape.family, [self._saved_bytes(shape, way) for way in shape.ways]
        for variant in family.variants:
            point = Point(variant, family.sizes, family.sequences, family.microbatch, shape.pipeline)
            yield self._memory_gib(shape, point, saved), point

    def of(self, point: Point) -> Bound:
        """The bound of a point whose batch and pipeline fit."""
        family = Family((point.variant,), point.sizes, point.sequences, point.microbatch)
        shape = self._shape(family, point.pipeline, self._microbatches(family))
        [(gib, point)] = self.points(shape)
        return Bound(self.time_s(shape, point), gib)

    def time_s(self, shape: Shape, point: Point) -> float:
        """Either the busiest rank with what it does after its last microbatch, or the longest way of one."""
        states, moves = self._states_of(point), self._moves_of(point)
        chip = self.space.plan.cluster.chip
        copies = shape.copies.of
        busiest = longest = 0.0
        after, late = [], []
        for way in shape.ways:
            inside_s, after_s = self._state_s(shape, way, moves)
            busy_s = back_s = update_s = 0.0
            for s, n in way.on.items():
                busy_s += shape.times * n * (copies[s].forward_s + copies[s].back_s)
                back_s += shape.times * n * copies[s].back_s
                update_s += n * states[s].update_s
            busiest = max(busiest, busy_s + inside_s + after_s)
            longest = max(longest, busy_s + inside_s + _way_s(shape, way), back_s + _turn_s(shape, way))
            late.append(update_s + chip.step_s + chip.launch_s * shape.times * way.stages)
            after.append(after_s)
        return max(busiest + min(late), longest + min(map(sum, zip(after, late, strict=True)))) * SHAVED

    def _memory_gib(self, shape: Shape, point: Point, saved: list[float]) -> float:
        """Of the fullest of the ranks that are the first of their kind; `saved` are bytes by way."""
        states, most = self._states_of(point), 0.0
        for way, saved_bytes in zip(shape.ways, saved, strict=True):
            state_bytes = states["step"].bytes_ + sum(n * states[s].bytes_ for s, n in way.on.items())
            most = max(most, saved_bytes + state_bytes + self._buffers(point, shape, way.on))
        return with_reserve(self.space.plan.cluster.chip, most) / GIB * SHAVED

    def _state_s(self, shape: Shape, way: Way, moves: Moves) -> tuple[float, float]:
        """A rank's exposed transfers of state: inside the pipeline and after it. They hide as `step` says."""
        inside = after = 0.0
        for phases in (("forward",), ("backward", "optimizer")):
            left_s = self._cover_s(shape, way, phases[0]) * shape.times
            for often in (True, False):
                hidden, waited = self._transfers(shape, way, moves, phases, often)
                share, left_s = hide(hidden, left_s if often else left_s / shape.times, self._contention)
                if self._tied and not often and ("first" in way.on) != ("last" in way.on):
                    share = self._contention  # a gradient summed with another rank may take the cover first
                for transfers, exposed in ((hidden, share), (waited, 1.0)):
                    for phase, (seconds, _) in transfers.items():
                        if phase == "optimizer":
                            after += exposed * seconds
                        else:
                            inside += exposed * seconds
        return inside, after

    def _cover_s(self, shape: Shape, way: Way, phase: Phase) -> float:
        """Seconds of a microbatch's compute on a rank, in the forward or in all the rest."""
        copies = shape.copies.of
        if phase == "forward":
            return sum(n * copies[s].cover_forward_s for s, n in way.on.items())
        return sum(n * copies[s].cover_back_s for s, n in way.on.items())

    def _transfers(
        self, shape: Shape, way: Way, moves: Moves, phases: tuple[Phase, ...], often: bool
    ) -> tuple[Transfers, Transfers]:
        """A rank's transfers of state that may hide and those that are waited for, in a step."""
        found: tuple[Transfers, Transfers] = {}, {}
        for s, n in way.on.items():
            for move in moves[s]:
                if move.phase in phases and (move.often and shape.times > 1) == often:
                    calls = n * shape.times if move.often else n
                    seconds, most = found[move.waited].get(move.phase, (0.0, 0))
                    found[move.waited][move.phase] = seconds + move.seconds * calls, max(most, calls)
        return found

    # Figures that points share.

    def _inside(self, family: Family) -> tuple[object, ...]:
        """What the figures of one copy depend on: what is run again and the axes inside a data-parallel rank;
        all axes, where experts take tokens from everywhere. How state is stored plays no part, unless copies of
        weights are made as often as they are gathered."""
        plan, variant = self.space.plan, family.variants[0]
        outside = set() if plan.model.top_k else {*self._data(variant)}
        outside |= {plan.split.axis} if plan.split else set()
        stored = self._stored[variant], self._microbatches(family)
        narrow = stored if self.space.variants[variant].plan.quantize else ()
        stride, inside = 1, []
        for name, size in reversed(list(zip(self._names, family.sizes, strict=True))):
            if name not in outside:
                inside.append((name, size, stride))
            stride *= size
        return (self.space.variants[variant].recompute, family.microbatch, narrow, *inside)

    def _copies_of(self, family: Family) -> Copies:
        known = self._copies.get(inside := self._inside(family))
        if known is None:
            known = self._copies[inside] = copies_of(self._sharded_as(family))
        return known

    def _sharded_as(self, family: Family) -> Sharded:
        """The layouts of a family with its first variant and pipeline; an op and a transfer take as long
        whatever is run again."""
        pipeline = self.space.pipelines(self.ranks(family.sizes))[0]
        point = Point(family.variants[0], family.sizes, family.sequences, family.microbatch, pipeline)
        sharded = self.sharded(point)
        same = (self._stored[point.variant], point.sizes, point.sequences, point.microbatch)
        first = self._alike.setdefault(same, sharded)
        sharded.memo.update(first.memo)
        sharded.plan.memo.update(first.plan.memo)
        return sharded

    def _states_of(self, point: Point) -> dict[Section, State]:
        known = self._states.get(key := (self._stored[point.variant], *point.sizes))
        if known is None:
            known = self._states[key] = states_of(self.sharded(point))
        return known

    def _moves_of(self, point: Point) -> Moves:
        known = self._moves.get(key := (self._stored[point.variant], *point.sizes))
        if known is None:
            known = self._moves[key] = moves_of(self.sharded(point), self._spans)
        return known

    def _buffers(self, point: Point, shape: Shape, held: dict[Section, int]) -> float:
        """Bytes that come and go on a rank with these sections."""
        sections = frozenset(held)
        state_key = (sections, self._stored[point.variant], *point.sizes)
        known = self._state_buffers.get(state_key)
        if known is None:
            sharded = self.sharded(point)
            here = [(p, 1) for p in sharded.params if sections.intersection(p.param.sections)]
            known = self._state_buffers[state_key] = state_buffers(sharded, here)
        replay_key = (sections, id(shape.copies))
        back = self._replay_buffers.get(replay_key)
        if back is None:
            back = self._replay_buffers[replay_key] = replay_buffers(self.sharded(point), {*sections})
        return at_the_fullest(known, back)

    def _data(self, variant: int) -> tuple[str, ...]:
        known = self._data_axes.get(variant)
        if known is None:
            plan = self.space.variants[variant].plan
            known = self._data_axes[variant] = tuple(a for s in plan.shards if s.dim == "batch" for a in s.axes)
        return known

    def data_parallel(self, variant: int, sizes: tuple[int, ...]) -> int:
        """Ranks that share the batch."""
        data, n = self._data(variant), 1
        for name, size in zip(self._names, sizes, strict=True):
            n *= size if name in data else 1
        return n

    def ranks(self, sizes: tuple[int, ...]) -> int:
        """Ranks of the pipeline."""
        split = self.space.plan.split
        return sizes[self._names.index(split.axis)] if split else 1

    def _microbatches(self, family: Family) -> int:
        return family.sequences // (self.data_parallel(family.variants[0], family.sizes) * family.microbatch)

    def _ways_of(self, family: Family, pipeline: Pipeline | None) -> tuple[Way, ...]:
        """The ranks that differ in what they hold, the first rank first; of those alike, the last."""
        split = pipeline.split if pipeline else None
        key = (split.schedule, split.chunks, split.stages) if split else None
        known = self._ways.get(key)
        if known is None:
            known = self._ways[key] = tuple(ways_through(self._plan_of(family, pipeline)))
        return known

    def _plan_of(self, family: Family, pipeline: Pipeline | None) -> Plan:
        point = Point(family.variants[0], family.sizes, family.sequences, family.microbatch, pipeline)
        return self.space.plan_of(point)


def _way_s(shape: Shape, way: Way) -> float:
    """Seconds of the first microbatch on its way to the rank, and of the last one on its way back."""
    if not shape.straight:
        return 0.0
    copies, total = shape.copies.of, 0.0
    for s, n in way.before.items():
        total += n * (copies[s].forward_s + (0.0 if shape.apart else copies[s].back_s))
    return total


def _turn_s(shape: Shape, way: Way) -> float:
    """Seconds until a backward comes to the rank, and of the last one from there."""
    if not shape.straight:
        return 0.0
    copies, total = shape.copies.of, shape.copies.through_s
    for s, n in way.after.items():
        total += n * (copies[s].back_s - (copies[s].weight_s if shape.apart else 0.0))
    for s, n in way.beneath.items() if not shape.apart else ():
        total += n * copies[s].back_s
    return total
