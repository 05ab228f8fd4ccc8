"""Lower bounds on a layout's step time (s) and peak memory (GiB), for branch and bound.

Layouts are bounded at three levels of detail. A finer bound is never below a coarser one:

    family   fixes mesh, recompute and batch: the work of all layers, divided evenly over the ranks, plus the warm-up
             of the pipeline up to the last rank
    shape    also fixes the pipeline: the critical paths through its ranks, with compute and exposed transfers of
             activations, and the activations that the first rank saves
    point    also fixes where state is stored: the full cost without the pipeline's bubbles, and the full memory
             with a lower bound on the microbatches in flight

The bounds are sums over sections (layers of a kind, and what is before or after them), whose values many layouts share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from operator import add
from typing import NamedTuple

from planc.checks import assume_checked
from planc.costing.memory.activations import replay_buffers
from planc.costing.memory.peak import GIB, allocator_of, at_the_fullest, memory, with_reserve
from planc.costing.step.layout_cost import LayoutCost, StateSeconds
from planc.costing.step.offload import offload_s
from planc.costing.step.optimizer import update_seconds
from planc.costing.step.section_cost import (
    MicrobatchSeconds,
    SavedActivations,
    StateBytes,
    microbatch_seconds,
    passing_on,
    resting_bytes,
    saved_activations,
    shared_gradients,
    stage_boundary_s,
    state_bytes,
)
from planc.costing.step.transfers import LinkTimes, state_transfers_of
from planc.diag.fast_dataclass import dataclass
from planc.ir.backend import Backend
from planc.ir.cache import Cache, Computed, cached_on
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.pipeline.timeline import Timeline
from planc.searching.critical_path import PipelinePaths, last_rank_layers
from planc.searching.space import Pipeline, Point, Space
from planc.sharding.collectives import semantic_collectives
from planc.sharding.propagate import propagate

Sections = dict[Section, int]
"""Number of copies of each section."""
SHAVED = 1 - 1e-12
"""Factor that allows for rounding: sums in another order differ in the last digits."""


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A layout takes at least `time_s` seconds per step and `memory_gib` GiB at its peak."""

    time_s: float
    memory_gib: float


class LayoutFamily(NamedTuple):
    """Layouts with the same mesh, recompute and batch. They differ in their pipeline and in where state is stored."""

    variants: tuple[int, ...]
    sizes: tuple[int, ...]
    sequences: int
    microbatch: int
    ranks: int
    """Number of pipeline ranks."""
    microbatches: int
    inside: tuple[object, ...]
    """Cache key of the bytes of one sequence: recompute, the loss's chunks, and the axes inside a data-parallel
    rank."""
    order: int
    """Index of the axis order."""
    strides: tuple[int, ...]
    """Strides of the axes inside a data-parallel rank. With `inside`, the cache key of the seconds of one sequence."""

    @property
    def first(self) -> Point:
        """The first layout of the family, with no pipeline chosen."""
        return Point(self.variants[0], self.sizes, self.sequences, self.microbatch, None, self.order)

    def holds(self, point: Point) -> bool:
        """True if the layout `point`, which must be on the family's mesh, belongs to the family."""
        own = self.sequences, self.microbatch, self.order
        return point.variant in self.variants and (point.sequences, point.microbatch, point.order) == own


class LayoutShape(NamedTuple):
    """Layouts that differ only in where state is stored, and the values that they share."""

    family: LayoutFamily
    pipeline: Pipeline | None
    paths: PipelinePaths
    times: int
    """Number of microbatches that a rank runs on each stage."""
    saved: SavedActivations
    first_bytes: float
    """Bytes of activations that the first rank saves. They do not depend on where state is stored."""

    @property
    def schedule(self) -> tuple[int, str]:
        """The cache key of the pipeline: its number of ranks, and the schedule as written."""
        return self.family.ranks, self.pipeline.text if self.pipeline else ""


class Bounds:
    """Lower bounds of the layouts of a space, computed from values that many layouts share.

    With a `backend`, transfers of state are counted once a step, because a program may keep parameters gathered and
    accumulate gradients over microbatches.
    """

    def __init__(self, space: Space, backend: Backend | None = None) -> None:
        self.space, self._programs = space, backend is not None
        stack = propagate(assume_checked(space.plan)).stack
        self._stack = replace(stack, lockstep=backend.lockstep) if backend else stack
        """The stack that runs the points. If all pipeline ranks run one program (`planc.pipeline.lockstep`), they share
        the sections before and after the layers, and sends overlap with other work."""
        self._names = space.axes
        again = {f.span for f in space.free if f.kind == "recompute"}
        self._stored_as = [tuple(v for at, v in one.values.items() if at not in again) for one in space.variants]
        """The values of each variant that decide where state is stored."""
        self._narrow = bool(space.plan.quantize)
        """True if weights are cast to a narrower dtype each time they are gathered."""
        self._linear = not space.plan.model.top_k and all(_one_batch(v.plan) for v in space.variants)
        """True if saved bytes are proportional to the number of sequences in a microbatch."""
        self.cache = Cache()
        self._links = LinkTimes()
        self._at: tuple[LayoutShape, Plan, float] | None = None
        """The most recent shape, with one of its plans and the seconds of a send between stages."""
        self._last_ranks: Computed[int, set[tuple[int, int]]] = Computed(self._end_layers)
        self._data: Computed[int, tuple[str, ...]] = Computed(self._data_axes)
        self._also: Computed[int, set[str]] = Computed(self._axes_of_other_dims)

    def sharded(self, point: Point) -> Sharded:
        """Return the sharded plan of the layout `point`. Layouts that differ only in axis sizes share one
        propagation."""
        plan = self.space.plan_of(point)
        return self._propagated(point, plan).resized(plan)

    @cached_on(lambda b, point, plan: b._propagated_place(point))
    def _propagated(self, point: Point, plan: Plan) -> Sharded:
        return propagate(assume_checked(plan))

    def _propagated_place(self, point: Point) -> tuple[Cache, Hashable]:
        return self.cache, (self._stored_as[point.variant], point.order, *[n > 1 for n in point.sizes])

    # Families.

    @cached_property
    def variant_groups(self) -> list[tuple[int, ...]]:
        """Groups of variants (values for `use ?`, `recompute ?` and `loss in ? chunks`) that differ only in where state
        is stored, each variant as its index in `space.variants`."""
        found: dict[object, list[int]] = {}
        for i in range(len(self.space.variants)):
            found.setdefault((self._inside_of(i), self._data[i], i if self._narrow else -1), []).append(i)
        return [tuple(variants) for variants in found.values()]

    def _inside_of(self, variant: int) -> Hashable:
        """Return what a variant recomputes if it is free, and the chunks of its loss."""
        one = self.space.variants[variant]
        return one.recompute, one.plan.loss_chunks

    def count(self, sizes: tuple[int, ...]) -> int:
        """Return the number of layouts on the mesh with these `sizes`."""
        batches = sum([len(v) * len(self.space.batches(self.data_parallel(v[0], sizes))) for v in self.variant_groups])
        return batches * len(self.space.pipelines(self.ranks(sizes)))

    def families(self, sizes: tuple[int, ...], order: int) -> Iterator[LayoutFamily]:
        """Yield the layouts on the mesh with these axis `sizes`, grouped by recompute and batch. `order` is the index
        of the axis order."""
        ranks, known = self.ranks(sizes), {}
        for variants in self.variant_groups:
            axes = self._data[variants[0]]
            if axes not in known:
                known[axes] = self.data_parallel(variants[0], sizes), *self._axes_of_figures(variants[0], sizes, order)
            data, inside, strides = known[axes]
            what = (self._inside_of(variants[0]), inside)
            for sequences, microbatch in self.space.batches(data):
                times = sequences // (data * microbatch)
                yield LayoutFamily(variants, sizes, sequences, microbatch, ranks, times, what, order, strides)

    def of_family(self, family: LayoutFamily) -> float:
        """Return a lower bound on the step time (s) of a `family` (layouts with one mesh, recompute and batch): the
        mean over the ranks or, if it is larger, the time of the last rank after the pipeline's warm-up."""
        ranks, times = family.ranks, family.microbatches
        pipelines = self.space.pipelines(ranks)
        # Parameters that stay gathered are made narrow the fewest times.
        copies = self.microbatch_seconds(family, max(pipelines, key=_keeps_gathered) if self._narrow else pipelines[0])
        forward_s, layer_s = copies.fastest_forward_s, copies.fastest_layer_s
        # The search may choose any of the pipelines, so the one with the least work counts.
        last = min(before * forward_s + times * on * layer_s for before, on in self._last_ranks[ranks])
        return max(times * copies.all_layers_s / ranks, last) * SHAVED

    def _end_layers(self, ranks: int) -> set[tuple[int, int]]:
        """Return (layers before the last rank's first stage, layers on the last rank) for each pipeline of `ranks`
        ranks."""
        return {last_rank_layers(p.split if p else None, ranks) for p in self.space.pipelines(ranks)}

    # Shapes.

    def shapes(self, family: LayoutFamily, room_gib: float = float("inf")) -> Iterator[LayoutShape]:
        """Yield the shapes of a `family`: its layouts with each pipeline that can run their number of microbatches, if
        the activations that the first rank saves fit into `room_gib`."""
        saved, room = self._saved_of(family), room_gib * GIB
        for pipeline, paths, held in self._paths_of(family):
            first_bytes = _bytes(saved, held) * SHAVED
            if first_bytes <= room:
                yield LayoutShape(family, pipeline, paths, family.microbatches // paths.copies, saved, first_bytes)

    @cached_on(lambda b, family: (b.cache, (family.ranks, family.microbatches)))
    def _paths_of(self, family: LayoutFamily) -> list[tuple[Pipeline | None, PipelinePaths, Sections]]:
        """Return the pipelines that can run the family's number of microbatches, each with a lower bound on the
        activations that its first rank saves, as a number of layers of each kind."""
        ranks, microbatches, found = family.ranks, family.microbatches, []
        for pipeline in self.space.pipelines(ranks):
            if pipeline is None or self.space.fits_schedule(pipeline, ranks, microbatches):
                paths = self._pipeline_paths(family.first, pipeline)
                found.append((pipeline, paths, paths.held_of_class(microbatches, 0)))
        return found

    def unfit(self, family: LayoutFamily) -> int:
        """Return the number of pipelines that cannot run the number of microbatches of the layouts in `family`."""
        return len(self.space.pipelines(family.ranks)) - len(self._paths_of(family))

    def _saved_bytes(self, shape: LayoutShape) -> list[float]:
        """Return for each class of equal ranks a lower bound on the bytes of saved activations."""
        return [_bytes(shape.saved, held) for held in shape.paths.held[shape.family.microbatches]]

    def critical_path_s(self, shape: LayoutShape) -> float:
        """Return a lower bound on the step time (s) of a `shape` (layouts that differ only in where state is stored):
        the critical path of the pipeline, without transfers of state. In lockstep, only the layers are counted."""
        within = self.space.plan.model.blocks if self.in_lockstep(shape) else None
        times = shape.paths.compute_times(self.microbatch_seconds(shape.family, shape.pipeline), within)
        return shape.paths.critical.lower_bound_s(times, shape.family.microbatches) * SHAVED

    # Points.

    def points(self, shape: LayoutShape) -> Iterator[tuple[float, Point]]:
        """Yield (lower bound on the peak memory in GiB, layout) for each layout of a `shape`, which fixes all but where
        state is stored."""
        family, saved, chip = shape.family, self._saved_bytes(shape), allocator_of(self.space.plan, self._stack)
        for variant in family.variants:
            point = Point(variant, family.sizes, family.sequences, family.microbatch, shape.pipeline, family.order)
            most = max(map(add, saved, self._state_bytes(point, shape)))
            yield with_reserve(chip, most) / GIB * SHAVED, point

    def _state_bytes(self, point: Point, shape: LayoutShape) -> list[float]:
        """Return for each class of equal ranks the bytes of all tensors other than saved activations."""
        stored, replayed = self._resting_bytes(point, shape), self._replayed_bytes(shape)
        policy = self._stack.policy
        return [
            resting + at_the_fullest((0.0, 0.0) if policy.fsdp1 else passing, back, policy.gathered_in_loss)
            for (resting, passing), back in zip(stored, replayed, strict=True)
        ]

    def layout(self, point: Point, shape: LayoutShape) -> LayoutCost:
        """Return the cost of the layout `point`. All layouts of a `shape` share one `Plan`, since they differ only in
        where state is stored."""
        if self._at is None or self._at[0] is not shape:
            plan = self.space.plan_of(point)
            self._at = shape, plan, stage_boundary_s(plan, self._stack, shape.saved.boundary, self._links)
        _, plan, handed_over = self._at
        return LayoutCost(
            plan=plan,
            division=shape.paths.division,
            compute=self.microbatch_seconds(shape.family, shape.pipeline),
            state=self._state_seconds_of(point, shape.times),
            memory_gib=partial(self._memory_gib, point),
            send_s=handed_over,
            offload_s=partial(offload_s, self.sharded(point)) if plan.offloads else _nothing_s,
        )

    def _memory_gib(self, point: Point, timeline: Timeline) -> float:
        """Return the peak memory (GiB) of the layout `point`, as `planc check` computes it."""
        sharded = self.sharded(point)
        return memory(sharded, timeline, None, semantic_collectives(sharded)).per_device_gib.total

    def time_s(self, layout: LayoutCost, shape: LayoutShape) -> float:
        """Return a lower bound on the step time (s) of a `layout` for any order of its pipeline's actions. `shape` has
        the values that it shares with other layouts."""
        if self.in_lockstep(shape):
            return self.critical_path_s(shape)
        times = shape.paths.kind_times(layout.work.times)
        makespan_s = shape.paths.critical.lower_bound_s(times, layout.plan.microbatches)
        return self.total_s(layout, makespan_s) * SHAVED

    def total_s(self, layout: LayoutCost, makespan_s: float) -> float:
        """Return a lower bound on the step time (s) of a `layout` whose pipeline takes at least `makespan_s`."""
        work = layout.work
        if self._programs:
            # If all transfers of state are within the microbatches, the others may wait for another rank than this one.
            after_s = work.after_s[work.slowest]
            makespan_s = max(makespan_s - after_s, work.busy_s[work.slowest])
        return work.total_s(makespan_s)

    def in_lockstep(self, shape: LayoutShape) -> bool:
        """True if all pipeline ranks of the layouts in `shape` run one program (SPMD)."""
        return self._stack.lockstep and shape.pipeline is not None and shape.pipeline.split is not None

    def of(self, point: Point) -> LowerBound:
        """Return the lower bounds of the layout `point`, whose batch and pipeline must be valid."""
        shape = self.shape(point)
        [(gib, point)] = self.points(shape)
        return LowerBound(self.time_s(self.layout(point, shape), shape), gib)

    def shape(self, point: Point) -> LayoutShape:
        """Return the `LayoutShape` that contains only the layout `point`."""
        family = next(f for f in self.families(point.sizes, point.order) if f.holds(point))
        family = family._replace(variants=(point.variant,))
        return next(s for s in self.shapes(family) if s.pipeline is point.pipeline)

    # Figures that points share.

    def _axes_of_figures(
        self, variant: int, sizes: tuple[int, ...], order: int
    ) -> tuple[tuple[object, ...], tuple[int, ...]]:
        """Return the (name, size) and the strides of the axes on which the values of a section depend: those inside a
        data-parallel rank, which have activations to send, or all if experts receive tokens from all ranks."""
        plan = self.space.plan
        outside = set() if plan.model.top_k else {*self._data[variant]} - self._also[variant]
        outside |= {plan.split.axis} if plan.split else set()
        mesh = self.space.mesh(sizes, order).every
        inside = [mesh[name] for name in self._names if name not in outside]
        return tuple([(a.name, a.size) for a in inside]), tuple([a.stride for a in inside])

    @cached_on(lambda b, family, pipeline: b._microbatch_place(family, pipeline))
    def microbatch_seconds(self, family: LayoutFamily, pipeline: Pipeline | None) -> MicrobatchSeconds:
        """Return the seconds of one microbatch of the layouts in `family` with this `pipeline`.

        They depend on where state is stored and on the schedule only if weights are cast to a narrower dtype after each
        gather.
        """
        return microbatch_seconds(self._sharded_as(family, pipeline), self._links)

    def _microbatch_place(self, family: LayoutFamily, pipeline: Pipeline | None) -> tuple[Cache, Hashable]:
        stored = self._stored_as[family.variants[0]], _keeps_gathered(pipeline)
        used = tuple([n > 1 for n in family.sizes])  # of one rank, they divide no parameters to gather
        narrow = (stored, family.microbatches, used) if self._narrow else None
        waits = family.ranks > 1 and self._stack.policy.launch_wait_s > 0
        return self.cache, (family.microbatch, narrow, family.inside, family.strides, waits)

    @cached_on(lambda b, family: (b.cache, (family.microbatch, family.inside)))
    def _saved_of(self, family: LayoutFamily) -> SavedActivations:
        """Return the bytes of activations that one microbatch of the layouts in `family` saves."""
        whole = self.space.variants[family.variants[0]].plan.loss_chunks == 1  # chunks add to one gradient of the head
        if self._linear and whole and family.microbatch > 1:
            return self._saved_of(family._replace(microbatch=1)).times(family.microbatch)
        return saved_activations(self._sharded_as(family, self.space.pipelines(family.ranks)[0]))

    def _sharded_as(self, family: LayoutFamily, pipeline: Pipeline | None) -> Sharded:
        """Return the sharded plan of the family's first layout with `pipeline`. Families that differ in recompute share
        its caches."""
        point = replace(family.first, pipeline=pipeline)
        sharded = self.sharded(point)
        first = self._first_of(point, sharded)
        sharded.cache.share(first.cache)
        sharded.plan.cache.share(first.plan.cache)
        return sharded

    @cached_on(lambda b, p, _: (b.cache, (b._stored(p), p.sizes, p.sequences, p.microbatch, p.order)))
    def _first_of(self, point: Point, sharded: Sharded) -> Sharded:
        return sharded

    @cached_on(lambda b, point: (b.cache, (b._stored(point), point.sizes)))
    def _stored_of(self, point: Point) -> StateBytes:
        return state_bytes(self.sharded(point))

    @cached_on(lambda b, point, times: (b.cache, (b._stored(point), times == 1, point.sizes, point.order)))
    def _state_seconds_of(self, point: Point, times: int) -> StateSeconds:
        sharded, links = self.sharded(point), self._links
        transfers = state_transfers_of(sharded, links, fewest=self._programs)
        return StateSeconds(transfers, update_seconds(sharded), shared_gradients(sharded, links))

    @cached_on(lambda b, point, shape: (b.cache, (shape.schedule, b._stored_as[point.variant], point.sizes)))
    def _resting_bytes(self, point: Point, shape: LayoutShape) -> list[tuple[float, tuple[float, float]]]:
        """Return for each class of equal ranks the bytes of persistent and of transient state."""
        stored, blocks = self._stored_of(point), self.space.plan.model.blocks
        return [
            (resting_bytes(stored, ranks.on, blocks), passing_on(stored, ranks.on)) for ranks in shape.paths.classes
        ]

    @cached_on(lambda b, shape: (b.cache, (shape.schedule, shape.family.microbatch, shape.family.inside)))
    def _replayed_bytes(self, shape: LayoutShape) -> list[tuple[float, float]]:
        """Return for each class of equal ranks the bytes of the buffers in which the backward recomputes."""
        return [replay_buffers(shape.saved.replays, ranks.on) for ranks in shape.paths.classes]

    def _stored(self, point: Point) -> Hashable:
        """Return the cache key of a layout's state: where it is stored, and True if the schedule keeps parameters
        gathered."""
        return self._stored_as[point.variant], _keeps_gathered(point.pipeline)

    def _data_axes(self, variant: int) -> tuple[str, ...]:
        return tuple(sorted(self.space.variants[variant].plan.sharding_axes("batch")))

    def _axes_of_other_dims(self, variant: int) -> set[str]:
        """Return the axes that divide more than the batch, or the batch in a part of the model alone: activations are
        sent over them."""
        plan = self.space.variants[variant].plan
        parts = [s.axes for s in plan.shards if s.dim != "batch" or s.region] + [r.axes for r in plan.replicates]
        layouts = [axes for override in plan.overrides for axes in override.layout.values()]
        return {axis for axes in (*parts, *layouts) for axis in axes}

    def data_parallel(self, variant: int, sizes: tuple[int, ...]) -> int:
        """Return the number of data-parallel ranks for the variant with the index `variant` on the mesh with these axis
        `sizes`."""
        data, n = self._data[variant], 1
        for name, size in zip(self._names, sizes, strict=True):
            n *= size if name in data else 1
        return n

    def ranks(self, sizes: tuple[int, ...]) -> int:
        """Return the number of pipeline ranks on the mesh with these axis `sizes`."""
        split = self.space.plan.split
        return sizes[self._names.index(split.axis)] if split else 1

    @cached_on(lambda b, first, pipeline: (b.cache, (b.ranks(first.sizes), pipeline and pipeline.text)))
    def _pipeline_paths(self, first: Point, pipeline: Pipeline | None) -> PipelinePaths:
        return PipelinePaths(self.space.plan_of(replace(first, pipeline=pipeline)))


def _one_batch(plan: Plan) -> bool:
    """True if all parts of the model shard the batch over the same axes, so that a device has whole sequences."""
    regions = [s.region for s in plan.shards if s.dim == "batch"] + [
        r.region for r in plan.replicates if r.dim == "batch"
    ]
    return not any(regions)


def _nothing_s(rank: int, compute_s: float, late_s: float) -> float:
    return 0.0


def _bytes(saved: SavedActivations, on: Sections) -> float:
    """Return the bytes of saved activations of `on` (the number of layers of each section)."""
    return sum([n * saved.saved[s] for s, n in on.items()])


def _keeps_gathered(pipeline: Pipeline | None) -> bool:
    """True if the schedule of `pipeline` keeps parameters gathered for the whole step by default."""
    return pipeline is not None and pipeline.split is not None and pipeline.split.splits_backward
