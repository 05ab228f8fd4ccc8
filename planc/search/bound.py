"""What a layout takes at least: less time or memory than this it cannot have, whatever the rest of the cost says.

Time: the busiest rank's compute and the transfers that activations wait for, in every microbatch, and the way
of the first and last microbatch through the stages before it. Memory: the first rank's state, and what the
microbatches in flight there save, with the buffers that come and go. Both are made of figures of one copy of
a section, which many layouts share.
"""

from __future__ import annotations

from planc.cost.compute import section_time
from planc.cost.memory import (
    GIB,
    communicators,
    replay_buffers,
    reserve_bytes,
    resting,
    saved_by_section,
    state_buffers,
)
from planc.cost.network import collective_s
from planc.cost.schedule import held_by_first
from planc.cost.topology import span_of
from planc.diag.light import dataclass
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.schedules import microbatch_copies, of, splits_backward
from planc.search.space import Point, Space
from planc.sharding import propagate
from planc.sharding.activations import backward, forward, recompute
from planc.sharding.stages import sections_of, sections_on


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds of a step and GiB of the fullest device, at least."""

    time_s: float
    memory_gib: float


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a section: seconds of a microbatch, those of its forward's ops, and the bytes it saves."""

    busy_s: float
    forward_s: float
    saved_bytes: float


@dataclass(frozen=True, slots=True)
class Way:
    """Sections on one rank, and those that its first microbatch goes through before it, by their copies.

    `back`: its last one goes back through them after all that the rank does. Where gradients of weights are
    apart, the rank may still do those then.
    """

    on: dict[Section, int]
    before: dict[Section, int]
    back: bool


class Bounds:
    """Lower bounds of the points of a space, from figures that many points share."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._propagated: dict[object, Sharded] = {}
        self._copies: dict[object, dict[Section, Copy]] = {}
        self._resting: dict[object, dict[Section, float]] = {}
        self._ways: dict[object, tuple[Way, ...]] = {}
        self._held: dict[object, dict[Section, int]] = {}
        self._insides: dict[object, tuple[object, ...]] = {}
        self._data_axes: dict[int, tuple[str, ...]] = {}
        self._state_buffers: dict[object, float] = {}
        self._replay_buffers: dict[object, float] = {}

    def sharded(self, point: Point) -> Sharded:
        """The layouts of a point: those of any plan with the same sentences and the same axes in use."""
        plan = self.space.plan_of(point)
        key = (point.variant, *(n > 1 for n in point.sizes))
        known = self._propagated.get(key)
        if known is None:
            known = self._propagated[key] = propagate(plan)
        return Sharded(plan=plan, ops=known.ops, params=known.params)

    def of(self, point: Point) -> Bound:
        """The bound of a point whose batch and pipeline fit."""
        plan = self.space.variants[point.variant].plan
        copies, rest = self._figures(point)
        ways = self._ways_of(point)
        split = point.pipeline.split if point.pipeline else plan.split
        times = self._microbatches(point) / microbatch_copies(split)
        time_s = max(
            times * sum(n * copies[s].busy_s for s, n in way.on.items())
            + sum(n * (copies[s].busy_s if way.back else copies[s].forward_s) for s, n in way.before.items())
            for way in ways
        )
        first = ways[0].on
        held = self._held_of(point)
        bytes_ = rest["step"] + sum(n * rest[s] for s, n in first.items())
        bytes_ += sum(n * copies[s].saved_bytes for s, n in held.items()) + self._buffers(point, first)
        return Bound(time_s, bytes_ / GIB)

    def alone_gib(self, point: Point) -> float:
        """GiB of the first rank with a single microbatch of its first stage: more with a larger microbatch."""
        copies, rest = self._figures(point)
        stage = sections_of(self.space.plan_of(point), 0)
        bytes_ = rest["step"] + sum(n * (rest[s] + copies[s].saved_bytes) for s, n in stage.items())
        return (bytes_ + self._buffers(point, stage)) / GIB

    # Figures that points share.

    def _figures(self, point: Point) -> tuple[dict[Section, Copy], dict[Section, float]]:
        """One copy of each section, for a microbatch and at rest."""
        copies = self._copies.get(inside := self._inside(point))
        rest = self._resting.get(mesh := (point.variant, *point.sizes))
        if copies is None or rest is None:
            sharded = self.sharded(point)
            copies = self._copies.setdefault(inside, copies or self._sections(sharded))
            rest = self._resting.setdefault(mesh, rest or self._state(sharded))
        return copies, rest

    def _buffers(self, point: Point, held: dict[Section, int]) -> float:
        """Bytes that come and go on a rank with these sections."""
        sections = frozenset(s for s, n in held.items() if n)
        state_key, replay_key = (sections, point.variant, *point.sizes), (sections, *self._inside(point))
        state, back = self._state_buffers.get(state_key), self._replay_buffers.get(replay_key)
        if state is None or back is None:
            sharded = self.sharded(point)
            here = [(p, 1) for p in sharded.params if sections.intersection(p.param.sections)]
            state = self._state_buffers[state_key] = state_buffers(sharded, here)
            back = self._replay_buffers[replay_key] = replay_buffers(sharded, {*sections})
        return state + back

    def _inside(self, point: Point) -> tuple[object, ...]:
        """What the figures of one copy depend on: what is run again and the axes inside a data-parallel rank;
        all axes, where experts take tokens from everywhere. How state is stored plays no part."""
        key = (point.variant, point.sizes, point.microbatch)
        known = self._insides.get(key)
        if known is None:
            known = self._insides[key] = self._found_inside(point)
        return known

    def _found_inside(self, point: Point) -> tuple[object, ...]:
        plan = self.space.plan
        outside = set() if plan.model.top_k else {*self._data(point.variant)}
        outside |= {plan.split.axis} if plan.split else set()
        names = [a.name for a in plan.mesh.axes]
        stride, inside = 1, []
        for name, size in reversed(list(zip(names, point.sizes, strict=True))):
            if name not in outside:
                inside.append((name, size, stride))
            stride *= size
        return (self.space.variants[point.variant].recompute, point.microbatch, *inside)

    def _data(self, variant: int) -> tuple[str, ...]:
        known = self._data_axes.get(variant)
        if known is None:
            plan = self.space.variants[variant].plan
            known = self._data_axes[variant] = tuple(a for s in plan.shards if s.dim == "batch" for a in s.axes)
        return known

    def data_parallel(self, variant: int, sizes: tuple[int, ...]) -> int:
        """Ranks that share the batch."""
        names = [a.name for a in self.space.plan.mesh.axes]
        data, n = {*self._data(variant)}, 1
        for name, size in zip(names, sizes, strict=True):
            n *= size if name in data else 1
        return n

    def ranks(self, sizes: tuple[int, ...]) -> int:
        """Ranks of the pipeline."""
        split = self.space.plan.split
        names = [a.name for a in self.space.plan.mesh.axes]
        return sizes[names.index(split.axis)] if split else 1

    def _microbatches(self, point: Point) -> int:
        return point.sequences // (self.data_parallel(point.variant, point.sizes) * point.microbatch)

    def _sections(self, sharded: Sharded) -> dict[Section, Copy]:
        plan = sharded.plan
        saved = saved_by_section(sharded)
        found = {}
        for section in sharded.ops:
            time = section_time(sharded, section, plan.cluster.chip)
            busy = time.forward_s + time.backward_s + time.recompute_s + self._moves_s(sharded, section)
            found[section] = Copy(busy, time.forward_s, saved.get(section, 0.0))
        return found

    def _moves_s(self, sharded: Sharded, section: Section) -> float:
        """Transfers that the next op waits for; none that might run beside compute."""
        plan = sharded.plan
        if plan.overlaps or any(o.ring for o in sharded.ops[section]):
            return 0.0
        total = 0.0
        again = list(recompute(sharded, section)) if plan.recompute.every == 1 else []
        for call in (*forward(sharded, section), *again, *backward(sharded, section)):
            axes = plan.mesh.in_order(call.axes)
            span = span_of(plan.mesh, plan.cluster, axes)
            if span.size > 1:
                total += call.times * collective_s(call.op, call.elements * DTYPE_BYTES[call.dtype], span)
        return total

    def _state(self, sharded: Sharded) -> dict[Section, float]:
        """Bytes of each section's parameters at rest, by copy; `step`: what every device holds anyway."""
        chip = sharded.plan.cluster.chip
        found = dict.fromkeys(sharded.ops, 0.0)
        for section in found:
            held = [(p, 1) for p in sharded.params if p.param.section == section]
            found[section] = sum(resting(sharded, held).values())
        return {**found, "step": communicators(sharded) * chip.communicator_bytes + reserve_bytes(chip)}

    def _ways_of(self, point: Point) -> tuple[Way, ...]:
        """The ranks that differ in what they hold, the first rank first; of those alike, the last."""
        split = point.pipeline.split if point.pipeline else None
        key = (split.schedule, split.chunks, len(split.stages)) if split else None
        known = self._ways.get(key)
        if known is None:
            known = self._ways[key] = self._found_ways(self.space.plan_of(point))
        return known

    def _found_ways(self, plan: Plan) -> tuple[Way, ...]:
        apart = plan.split is not None and splits_backward(plan.split)
        straight = plan.split is not None and of(plan.split).placement == "loop" and not plan.split.order
        found: dict[tuple[object, ...], Way] = {}
        before: dict[Section, int] = {}
        for rank in range(plan.pipeline):
            on = {s: n for s, n in sections_on(plan, rank).items() if s != "step"}
            found[tuple(on.items())] = Way(on, dict(before) if straight else {}, not apart)
            for s, n in sections_of(plan, rank).items() if straight else ():
                before[s] = before.get(s, 0) + n
        return tuple(found.values())

    def _held_of(self, point: Point) -> dict[Section, int]:
        """Copies of sections times microbatches that the first rank holds at once."""
        pipeline = point.pipeline
        if pipeline is None:
            return dict(self._ways_of(point)[0].on)
        split, ranks = pipeline.split, self.ranks(point.sizes)
        microbatches = self._microbatches(point)
        key = (split.schedule, split.chunks, ranks, microbatches)
        known = self._held.get(key)
        if known is None:
            plan = self.space.plan_of(point)
            known = {}
            for stage, count in held_by_first(split, ranks, microbatches).items():
                for s, n in sections_of(plan, stage).items():
                    known[s] = known.get(s, 0) + count * n
            self._held[key] = known
        return known
