"""Figures of one copy of a section, of which the bounds of many layouts are made."""

from __future__ import annotations

from collections.abc import Iterator

from planc.cost.compute import memory_rate, section_time
from planc.cost.exposed import activations_s
from planc.cost.memory import communicators, resting, saved_by_section
from planc.cost.network import bare_s
from planc.cost.step import OPTIMIZER_PASSES
from planc.cost.topology import Span, span_of
from planc.diag.light import dataclass
from planc.ir.collective import DTYPE_BYTES, Phase
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.schedules import microbatch_copies
from planc.sharding.local import stored_elements
from planc.sharding.state import state


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a section: seconds of a microbatch with the transfers that are waited for, forward and all
    the rest, those of the weights' gradients alone, those that compute takes, and the bytes saved."""

    forward_s: float
    back_s: float
    weight_s: float
    cover_forward_s: float
    cover_back_s: float
    saved_bytes: float


@dataclass(frozen=True, slots=True)
class Copies:
    """One copy of each section; seconds of a microbatch on all layers, of its forward there, of the
    quickest layer and of its forward."""

    of: dict[Section, Copy]
    whole_s: float
    through_s: float
    layer_s: float
    forward_s: float


@dataclass(frozen=True, slots=True)
class Move:
    """Transfers of one copy's state that hide together: seconds of all, each call once."""

    phase: Phase
    often: bool
    """Each microbatch; otherwise once a step."""
    waited: bool
    """Nothing hides them."""
    seconds: float


@dataclass(frozen=True, slots=True)
class State:
    """What is stored where, for one copy of a section: bytes at rest and seconds of its update."""

    bytes_: float
    update_s: float


Moves = dict[Section, tuple[Move, ...]]
"""Transfers of one copy of each section."""

Spans = dict[object, Span]
"""Where groups lie, by their axes and the mesh: what many layouts ask for."""


def copies_of(sharded: Sharded) -> Copies:
    """Seconds and bytes of one copy of each section, in a microbatch."""
    plan = sharded.plan
    saved, found = saved_by_section(sharded), {}
    for section in sharded.ops:
        time = section_time(sharded, section, plan.cluster.chip)
        forward_s, rest_s = activations_s(sharded, section)
        back = time.backward_s + time.recompute_s
        found[section] = Copy(
            time.forward_s + forward_s,
            back + rest_s,
            time.weight_s,
            time.forward_s,
            back,
            saved.get(section, 0.0),
        )
    many = {s: plan.model.layers_of(s) if s in plan.model.blocks else 1 for s in found}
    layers = [found[s] for s in plan.model.blocks]
    return Copies(
        of=found,
        whole_s=sum(n * (found[s].forward_s + found[s].back_s) for s, n in many.items()),
        through_s=sum(n * found[s].forward_s for s, n in many.items()),
        layer_s=min(c.forward_s + c.back_s for c in layers),
        forward_s=min(c.forward_s for c in layers),
    )


def states_of(sharded: Sharded) -> dict[Section, State]:
    """By section; `step`: what every device holds anyway."""
    plan, chip = sharded.plan, sharded.plan.cluster.chip
    anyway = communicators(sharded) * chip.communicator_bytes
    found = {"step": State(anyway, 0.0)}
    for section in sharded.ops:
        held = [(p, 1) for p in sharded.params if p.param.section == section]
        updated = sum(
            stored_elements(plan, p, p.stored["optimizer"]) * DTYPE_BYTES[plan.store_dtype("optimizer", p.param.region)]
            for p, _ in held
        )
        found[section] = State(
            bytes_=sum(resting(sharded, held).values()),
            update_s=OPTIMIZER_PASSES * updated / memory_rate(chip),
        )
    return found


def moves_of(sharded: Sharded, spans: Spans) -> Moves:
    """Transfers of state, by section."""
    return {section: tuple(_moves(sharded, section, spans)) for section in sharded.ops}


def _moves(sharded: Sharded, section: Section, spans: Spans) -> Iterator[Move]:
    """A section's transfers of state. None where all ranks sum gradients with another too, which hide beside."""
    plan = sharded.plan
    if microbatch_copies(plan.split) > 1:
        return
    waits = {o.axis for o in plan.overlaps if o.method == "none"}
    seconds: dict[tuple[Phase, bool, bool], float] = {}
    for call in state(sharded, section):
        axes = plan.mesh.in_order(call.axes)
        if axes:
            one = bare_s(call.op, call.elements * DTYPE_BYTES[call.dtype], _span(plan, axes, spans))
            key = call.phase, call.per == "microbatch", not waits.isdisjoint(axes)
            seconds[key] = seconds.get(key, 0.0) + call.times * one
    for (phase, often, waited), s in seconds.items():
        yield Move(phase, often, waited, s)


def _span(plan: Plan, axes: tuple[str, ...], spans: Spans) -> Span:
    """Where a group over these axes lies: what the mesh says, whatever is stored."""
    key = (axes, *plan.mesh.sizes.values())
    known = spans.get(key)
    if known is None:
        known = spans[key] = span_of(plan.mesh, plan.cluster, axes)
    return known
