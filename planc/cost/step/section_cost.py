"""Figures of one copy of a section, of which the cost of many layouts is made.

What a copy computes and saves depends on the axes inside a data-parallel rank, what it stores and moves for
that on where state lies: layouts of one plan share most of both. `planc.cost.step.rank_cost` makes a step and the
memory of a layout of them.
"""

from __future__ import annotations

from planc.cost.compute.section import SectionTime, section_time
from planc.cost.machine.collective_time import bare_s
from planc.cost.machine.rates import memory_bytes_per_s
from planc.cost.machine.topology import Span, span_of
from planc.cost.memory.activations import Replays, replays_of, saved_by_section
from planc.cost.memory.state import PassingBytes, communicators, passing_bytes, resting
from planc.cost.step.overlap import beside
from planc.cost.step.step_time import OPTIMIZER_PASSES
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import DTYPE_BYTES, CollectiveOp, Phase
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.pipeline.split import microbatch_copies
from planc.sharding.activation_collectives import ActivationPhase, moves
from planc.sharding.calls import Call
from planc.sharding.collectives import handed_over_bytes, shared_bytes
from planc.sharding.local import stored_elements
from planc.sharding.state_collectives import scalars, state


class Links:
    """Where groups of one cluster lie and what their transfers take: what many layouts ask for."""

    def __init__(self) -> None:
        self._spans: dict[object, Span] = {}
        self._bare_s: dict[object, float] = {}

    def span(self, plan: Plan, axes: tuple[str, ...]) -> Span:
        """Of a group over these axes: what the mesh says, whatever is stored."""
        key = axes, plan.mesh.every_size
        known = self._spans.get(key)
        if known is None:
            known = self._spans[key] = span_of(plan.mesh, plan.cluster, axes)
        return known

    def seconds(self, plan: Plan, op: CollectiveOp, buffer_bytes: float, axes: tuple[str, ...]) -> tuple[float, float]:
        """Of one call by itself, and of asking for it."""
        span = self.span(plan, axes)
        key = op, buffer_bytes, id(span)
        known = self._bare_s.get(key)
        if known is None:
            known = self._bare_s[key] = bare_s(op, buffer_bytes, span)
        return known, span.call_s

    def of(self, plan: Plan, call: Call) -> tuple[float, float]:
        """The same for a call's group; nothing where that is one device."""
        axes = plan.mesh.in_order(call.axes)
        if plan.mesh.size(*axes) == 1:
            return 0.0, 0.0
        return self.seconds(plan, call.op, call.elements * DTYPE_BYTES[call.dtype], axes)


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of a microbatch: what one copy of each section saves, what backwards bring beside it, and what stages
    hand over."""

    saved: dict[Section, float]
    replays: Replays
    handed_over: float

    def times(self, sequences: float) -> Kept:
        """With so many times the sequences in a microbatch."""
        back = self.replays
        return Kept(
            {s: n * sequences for s, n in self.saved.items()},
            Replays(
                {s: n * sequences for s, n in back.blocks.items()},
                back.logits * sequences,
                back.loss * sequences,
                back.together,
            ),
            self.handed_over * sequences,
        )


def kept_of(sharded: Sharded) -> Kept:
    """What a microbatch leaves behind."""
    return Kept(saved_by_section(sharded), replays_of(sharded), handed_over_bytes(sharded))


@dataclass(frozen=True, slots=True)
class Copy:
    """Seconds of one copy of a section for a microbatch: with the transfers that are waited for, forward and all the
    rest, and what of them is compute."""

    forward_s: float
    back_s: float
    time: SectionTime
    cover_back_s: float
    """Compute of the backward, with what it runs again."""


@dataclass(frozen=True, slots=True)
class Copies:
    """One copy of each section; seconds of a microbatch on all layers, of its forward there, of the quickest layer
    and of its forward."""

    of: dict[Section, Copy]
    whole_s: float
    through_s: float
    layer_s: float
    forward_s: float


def copies_of(sharded: Sharded, links: Links) -> Copies:
    """Seconds of one copy of each section, for a microbatch."""
    plan, found = sharded.plan, {}
    for section in sharded.ops:
        time = section_time(sharded, section, plan.cluster.chip)
        forward_s, rest_s = _activations_s(sharded, section, links)
        back = time.backward_s + time.recompute_s
        found[section] = Copy(time.forward_s + forward_s, back + rest_s, time, back)
    many = {s: plan.model.layers_of(s) if s in plan.model.blocks else 1 for s in found}
    layers = [found[s] for s in plan.model.blocks]
    return Copies(
        of=found,
        whole_s=sum(n * (found[s].forward_s + found[s].back_s) for s, n in many.items()),
        through_s=sum(n * found[s].forward_s for s, n in many.items()),
        layer_s=min(c.forward_s + c.back_s for c in layers),
        forward_s=min(c.forward_s for c in layers),
    )


def _activations_s(sharded: Sharded, section: Section, links: Links) -> tuple[float, float]:
    """Exposed seconds of the transfers of activations of one copy, in the forward, and in all the rest; without what
    only some layers run again."""
    known: tuple[float, float] | None = sharded.memo.get(("activations_s", section))
    if known is None:
        both = _phase_s(sharded, section, "forward", links), _phase_s(sharded, section, "backward", links)
        known = sharded.memo["activations_s", section] = both
    again = _phase_s(sharded, section, "recompute", links) if sharded.plan.recompute.every == 1 else 0.0
    return known[0], known[1] + again


def _phase_s(sharded: Sharded, section: Section, phase: ActivationPhase, links: Links) -> float:
    plan, moving, asked = sharded.plan, [], 0.0
    for call in moves(sharded, section, phase):
        seconds, asked_s = links.of(plan, call)
        moving.append((call.op, plan.mesh.in_order(call.axes), call.times * seconds))
        asked += call.times * asked_s
    return sum(beside(sharded, section, phase, 1, moving)) + asked


Sections = tuple[Section, ...]
"""The sections that use some parameters; most have one."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes of one copy of the state that lies in the same sections, and of what comes and goes for a section; and
    those of every device's communicators."""

    resting: dict[Sections, float]
    passing: dict[Section, PassingBytes]
    communicators: float


def stored_of(sharded: Sharded) -> Stored:
    """Bytes of the state."""
    return Stored(
        resting={
            sections: sum(resting(sharded, [(p, 1) for p in params]).values())
            for sections, params in _by_sections(sharded).items()
        },
        passing=passing_bytes(sharded, sharded.params),
        communicators=communicators(sharded) * sharded.plan.cluster.chip.communicator_bytes,
    )


def _by_sections(sharded: Sharded) -> dict[Sections, list[ParamSharding]]:
    found: dict[Sections, list[ParamSharding]] = {}
    for p in sharded.params:
        found.setdefault(tuple(p.param.sections), []).append(p)
    return found


@dataclass(frozen=True, slots=True)
class Move:
    """Transfers of one copy of a section's state that hide together: seconds of all, each call once, and of asking
    for them."""

    section: Section
    phase: Phase
    waited: bool
    """Nothing hides them."""
    seconds: float
    asked_s: float


BothWays = tuple[tuple[Move, ...], tuple[Move, ...]]
"""Forward, and all the rest."""


@dataclass(frozen=True, slots=True)
class Update:
    """One copy of the parameters that lie in the same sections: seconds of its update, and where ranks of a pipeline
    sum its gradient, of that and of asking for it."""

    seconds: float
    shared_s: float
    asked_s: float


@dataclass(frozen=True, slots=True)
class Moved:
    """Seconds of what a step does with the state.

    `moves` of each microbatch and those once a step, forward and all the rest; the scalars, once on every device.
    """

    updates: dict[Sections, Update]
    often: BothWays
    once: BothWays
    scalars_s: float
    shared_waits: bool
    """Nothing hides the sums between ranks of a pipeline."""


def moved_of(sharded: Sharded, links: Links) -> Moved:
    """Seconds of the state's transfers and of its update."""
    plan, waits = sharded.plan, _waits(sharded.plan)
    often, once = _moves(sharded, waits, links)
    return Moved(
        updates={sections: _update(sharded, params, links) for sections, params in _by_sections(sharded).items()},
        often=often,
        once=once,
        scalars_s=sum(call.times * sum(links.of(plan, call)) for call in scalars(sharded)),
        shared_waits=plan.split is not None and plan.split.axis in waits,
    )


def _update(sharded: Sharded, params: list[ParamSharding], links: Links) -> Update:
    """One copy of some parameters."""
    plan, chip = sharded.plan, sharded.plan.cluster.chip
    updated = sum(
        stored_elements(plan, p, p.stored["optimizer"]) * DTYPE_BYTES[plan.store_dtype("optimizer", p.param.region)]
        for p in params
    )
    shared_s = asked_s = 0.0
    twice = microbatch_copies(plan.split) > 1
    shared = [p for p in params if twice or {"first", "last"} <= {*p.param.sections}]
    if plan.split is not None and plan.pipeline > 1:
        each = [links.seconds(plan, "all_reduce", shared_bytes(plan, p), (plan.split.axis,)) for p in shared]
        shared_s, asked_s = sum(s for s, _ in each), sum(s for _, s in each)
    return Update(OPTIMIZER_PASSES * updated / memory_bytes_per_s(chip), shared_s, asked_s)


def _moves(sharded: Sharded, waits: set[str], links: Links) -> tuple[BothWays, BothWays]:
    """Transfers of state, of each microbatch and once a step."""
    plan = sharded.plan
    seconds: dict[tuple[bool, Section, Phase, bool], tuple[float, float]] = {}
    for section in sharded.ops:
        for call in state(sharded, section):
            axes = plan.mesh.in_order(call.axes)
            if plan.mesh.size(*axes) > 1:
                key = call.per == "microbatch", section, call.phase, not waits.isdisjoint(axes)
                sum_s, sum_asked_s = seconds.get(key, (0.0, 0.0))
                one_s, asked_s = links.of(plan, call)
                seconds[key] = sum_s + call.times * one_s, sum_asked_s + call.times * asked_s

    def both(often: bool) -> BothWays:
        mine = [(Move(*key[1:], *s), key[2] == "forward") for key, s in seconds.items() if key[0] == often]
        return tuple(m for m, forward in mine if forward), tuple(m for m, forward in mine if not forward)

    return both(True), both(False)


def handed_over_s(plan: Plan, kept: Kept, links: Links) -> float:
    """Seconds in which one stage hands a microbatch over to the next."""
    if plan.split is None or plan.pipeline == 1:
        return 0.0
    return sum(links.seconds(plan, "send_recv", kept.handed_over, (plan.split.axis,)))


def _waits(plan: Plan) -> set[str]:
    """Axes whose transfers nothing may hide."""
    return {o.axis for o in plan.overlaps if o.method == "none"}
