"""Figures of one copy of a section, of which the cost of many layouts is made.

What a copy computes and saves depends on the axes inside a data-parallel rank, what it stores and moves for
that on where state lies: layouts of one plan share most of both. `planc.cost.layout` makes a step and the
memory of a layout of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.cost.compute import SectionTime, memory_rate, section_time
from planc.cost.exposed import activations_s
from planc.cost.memory import (
    PassingBytes,
    Replays,
    communicators,
    passing_bytes,
    replays_of,
    resting,
    saved_by_section,
)
from planc.cost.network import bare_s, collective_s
from planc.cost.step import OPTIMIZER_PASSES
from planc.cost.topology import Span, span_of
from planc.diag.light import dataclass
from planc.ir.collective import DTYPE_BYTES, Phase
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.sharding.collectives import handed_over_bytes, shared_bytes
from planc.sharding.local import stored_elements
from planc.sharding.state import scalars, state


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a section: seconds of a microbatch with the transfers that are waited for, forward and all
    the rest, what of them is compute, and the bytes saved."""

    forward_s: float
    back_s: float
    time: SectionTime
    saved_bytes: float

    @property
    def cover_back_s(self) -> float:
        """Compute of the backward, with what it runs again."""
        return self.time.backward_s + self.time.recompute_s


@dataclass(frozen=True, slots=True)
class Copies:
    """One copy of each section, what its backward brings, and what stages hand over of a microbatch; seconds of a
    microbatch on all layers, of its forward there, of the quickest layer and of its forward.
    """

    of: dict[Section, Copy]
    replays: Replays
    handed_over_bytes: float
    whole_s: float
    through_s: float
    layer_s: float
    forward_s: float


def copies_of(sharded: Sharded) -> Copies:
    """Seconds and bytes of one copy of each section, in a microbatch."""
    plan = sharded.plan
    saved, found = saved_by_section(sharded), {}
    for section in sharded.ops:
        time = section_time(sharded, section, plan.cluster.chip)
        forward_s, rest_s = activations_s(sharded, section)
        back = time.backward_s + time.recompute_s
        found[section] = Copy(time.forward_s + forward_s, back + rest_s, time, saved.get(section, 0.0))
    many = {s: plan.model.layers_of(s) if s in plan.model.blocks else 1 for s in found}
    layers = [found[s] for s in plan.model.blocks]
    return Copies(
        of=found,
        replays=replays_of(sharded),
        handed_over_bytes=handed_over_bytes(sharded),
        whole_s=sum(n * (found[s].forward_s + found[s].back_s) for s, n in many.items()),
        through_s=sum(n * found[s].forward_s for s, n in many.items()),
        layer_s=min(c.forward_s + c.back_s for c in layers),
        forward_s=min(c.forward_s for c in layers),
    )


@dataclass(frozen=True, slots=True)
class Move:
    """Transfers of one copy's state that hide together: seconds of all, each call once, and of asking for them."""

    phase: Phase
    often: bool
    """Each microbatch; otherwise once a step."""
    waited: bool
    """Nothing hides them."""
    seconds: float
    asked_s: float


@dataclass(frozen=True, slots=True)
class Rest:
    """Parameters that lie in the same sections: bytes of one copy at rest and seconds of its update. Where ranks of
    a pipeline sum its gradient: seconds of that, and of asking for it."""

    bytes_: float
    update_s: float
    shared_s: float
    asked_s: float


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored where.

    `rests` by the sections that use the parameters; `moves` and `passing` (bytes that come and go) of one copy of a
    section; once on every device: bytes of its communicators and seconds of the scalars.
    """

    rests: dict[tuple[Section, ...], Rest]
    moves: dict[Section, tuple[Move, ...]]
    passing: dict[Section, PassingBytes]
    communicators_bytes: float
    scalars_s: float
    shared_waits: bool
    """Nothing hides the sums between ranks of a pipeline."""


Spans = dict[object, Span]
"""Where groups lie, by their axes and the mesh: what many layouts ask for."""


def stored_of(sharded: Sharded, spans: Spans) -> Stored:
    """Bytes and seconds of the state, and of what moves it."""
    plan, waits = sharded.plan, _waits(sharded.plan)
    sections: dict[tuple[Section, ...], list[ParamSharding]] = {}
    for p in sharded.params:
        sections.setdefault(tuple(p.param.sections), []).append(p)
    told = [(plan.mesh.in_order(c.axes), c.elements * DTYPE_BYTES[c.dtype], c.op) for c in scalars(sharded)]
    return Stored(
        rests={key: _rest(sharded, params, spans) for key, params in sections.items()},
        moves={s: tuple(_moves(sharded, s, spans)) for s in sharded.ops},
        passing=passing_bytes(sharded, sharded.params),
        communicators_bytes=communicators(sharded) * plan.cluster.chip.communicator_bytes,
        scalars_s=sum(
            collective_s(op, size, span_at(plan, axes, spans)) for axes, size, op in told if plan.mesh.size(*axes) > 1
        ),
        shared_waits=plan.split is not None and plan.split.axis in waits,
    )


def _rest(sharded: Sharded, params: list[ParamSharding], spans: Spans) -> Rest:
    """One copy of some parameters."""
    plan, chip = sharded.plan, sharded.plan.cluster.chip
    updated = sum(
        stored_elements(plan, p, p.stored["optimizer"]) * DTYPE_BYTES[plan.store_dtype("optimizer", p.param.region)]
        for p in params
    )
    shared_s = asked_s = 0.0
    if plan.split is not None and plan.pipeline > 1:
        span = span_at(plan, (plan.split.axis,), spans)
        shared_s = sum(bare_s("all_reduce", shared_bytes(plan, p), span) for p in params)
        asked_s = len(params) * span.call_s
    return Rest(
        bytes_=sum(resting(sharded, [(p, 1) for p in params]).values()),
        update_s=OPTIMIZER_PASSES * updated / memory_rate(chip),
        shared_s=shared_s,
        asked_s=asked_s,
    )


def _moves(sharded: Sharded, section: Section, spans: Spans) -> Iterator[Move]:
    """A section's transfers of state."""
    plan, waits = sharded.plan, _waits(sharded.plan)
    seconds: dict[tuple[Phase, bool, bool], tuple[float, float]] = {}
    for call in state(sharded, section):
        axes = plan.mesh.in_order(call.axes)
        if plan.mesh.size(*axes) > 1:
            span = span_at(plan, axes, spans)
            one = bare_s(call.op, call.elements * DTYPE_BYTES[call.dtype], span)
            key = call.phase, call.per == "microbatch", not waits.isdisjoint(axes)
            sum_s, asked_s = seconds.get(key, (0.0, 0.0))
            seconds[key] = sum_s + call.times * one, asked_s + call.times * span.call_s
    for (phase, often, waited), (s, asked_s) in seconds.items():
        yield Move(phase, often, waited, s, asked_s)


def handed_over_s(plan: Plan, copies: Copies, spans: Spans) -> float:
    """Seconds in which one stage hands a microbatch over to the next."""
    if plan.split is None or plan.pipeline == 1:
        return 0.0
    return collective_s("send_recv", copies.handed_over_bytes, span_at(plan, (plan.split.axis,), spans))


def _waits(plan: Plan) -> set[str]:
    """Axes whose transfers nothing may hide."""
    return {o.axis for o in plan.overlaps if o.method == "none"}


def span_at(plan: Plan, axes: tuple[str, ...], spans: Spans) -> Span:
    """Where a group over these axes lies: what the mesh says, whatever is stored."""
    key = (axes, *plan.mesh.sizes.values())
    known = spans.get(key)
    if known is None:
        known = spans[key] = span_of(plan.mesh, plan.cluster, axes)
    return known
