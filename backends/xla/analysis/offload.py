"""State and saved activations that are offloaded to host memory."""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import state_layout
from planc.backends.xla.analysis.saved_by_blocks import by_name, saved_by_replayed_blocks
from planc.backends.xla.analysis.state_dtypes import number_bytes
from planc.costing.step.offload import STATE
from planc.ir.base import Cause
from planc.ir.plan import Noun, Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.ir.updates import moments_of
from planc.sharding.local import param_elements, tensor_bytes


def fetched_whole(sharded: Sharded, p: ParamSharding) -> bool:
    """True if `p` is outside the layers: XLA then fetches the whole state of `p` at the start of a step."""
    return not {*p.param.sections} & {*sharded.model.blocks}


def cause_of(plan: Plan, name: str) -> Cause | None:
    """Return the sentence of `plan` that offloads `name`, a kind of state or a tensor; None if there is none."""
    return next((o.cause for o in plan.offloads if name in o.what), None)


def saved_on_host(sharded: Sharded) -> tuple[str, ...]:
    """Return the names of the tensors, block inputs included, that recomputed blocks save in host memory."""
    away = sharded.plan.offloaded
    saved = {kind: tuple(t for t in held if t in away) for kind, held in saved_by_replayed_blocks(sharded).items()}
    return by_name(sharded, saved)


def updates_where_it_rests(sharded: Sharded) -> bool:
    """True if parameters are stored in the layout of their optimizer state: each rank updates what it stores."""
    layout = state_layout(sharded)
    return all(layout(p, "params") == layout(p, "optimizer") for p in sharded.params)


def resting_bytes(sharded: Sharded) -> float:
    """Return the bytes of state and activations in host memory, per device of `sharded`, at the end of a forward."""
    plan = sharded.plan
    state = sum(_state_bytes(sharded, noun) for noun in STATE if noun in plan.offloaded)
    return state + saved_bytes(sharded)


def saved_bytes(sharded: Sharded) -> float:
    """Return the bytes of activations that the layers of `sharded` offload for one microbatch of a device."""
    plan, model, away = sharded.plan, sharded.model, sharded.plan.offloaded
    return sum(
        model.layers_of(kind) * tensor_bytes(plan, t, sharded.declared(t))
        for kind, held in saved_by_replayed_blocks(sharded).items()
        for t in held
        if t in away
    )


def transferred_bytes(sharded: Sharded) -> tuple[float, float]:
    """Return the bytes of one step of `sharded` from a device to its host, and from the host to the device. Offloaded
    state goes both ways for its update, and offloaded activations in each microbatch; parameters are fetched a second
    time for the copies in the compute dtype."""
    state = {noun: _state_bytes(sharded, noun) for noun in STATE if noun in sharded.plan.offloaded}
    saved = sharded.plan.microbatches * saved_bytes(sharded)
    return sum(state.values()) + saved, sum(state.values()) + state.get("params", 0.0) + saved


def _state_bytes(sharded: Sharded, noun: Noun) -> float:
    """Return the bytes of `noun` in one device's host memory. Parameters without a divisible dim are replicated."""
    layout, plan = state_layout(sharded), sharded.plan
    total = 0.0
    for p in sharded.params:
        axes, cut = layout(p, noun)
        held = sharded.model.copies(p.param) * param_elements(plan, p)
        held *= moments_of(plan, p.param.name) if noun == "optimizer" else 1
        total += held / (1 if cut is None else plan.mesh.size(*axes))
    return total * number_bytes(plan, noun)
