"""Activations that the backward of a block saves, for recomputed blocks and for the others."""

from __future__ import annotations

from planc.backends.xla.analysis.attention import KERNEL_OUTPUT, runs_splash
from planc.backends.xla.analysis.pipeline import chunks
from planc.ir.model import Section
from planc.ir.sharding import Sharded
from planc.sharding.recompute import replay, saved_without_recompute
from planc.sharding.stage_assignment import replayed_on


def every(sharded: Sharded) -> int:
    """Return n if one of every n layers is recomputed and the others save everything; 1 if all are recomputed."""
    return sharded.plan.recompute.every


def layers_that_save(sharded: Sharded, kind: Section, tensor: str) -> float:
    """Return the fraction of the layers of `kind` that save `tensor` for their backward."""
    model = sharded.model
    layers = model.layers_of(kind)
    again = sum(replayed_on(sharded.plan, rank, kind, layers) for rank in range(sharded.plan.pipeline))
    again = layers if every(sharded) == 1 else again
    keep = again * (tensor in replay(sharded.plan, kind).saved)
    keep += (layers - again) * (tensor in saved_without_recompute(model, kind))
    return keep / layers


def saved_by_replayed_blocks(sharded: Sharded) -> dict[Section, tuple[str, ...]]:
    """Return the tensors that recomputed blocks save for the backward, block inputs included, by kind of block."""
    return {kind: replay(sharded.plan, kind).saved for kind in sharded.model.blocks}


def saved_activations(sharded: Sharded) -> tuple[str, ...]:
    """Return the names of tensors that recomputed blocks save on the device; the scan saves block inputs, which are
    left out."""
    away = sharded.plan.offloaded
    kept = {kind: tuple(t for t in held if t not in away) for kind, held in saved_by_replayed_blocks(sharded).items()}
    return by_name(sharded, _without_input(sharded, kept))


def saved_without_replay(sharded: Sharded) -> tuple[str, ...]:
    """Return the names of the activations that blocks without recomputation save for the backward; () if there are
    none."""
    if every(sharded) == 1:
        return ()
    held = {kind: saved_without_recompute(sharded.model, kind) for kind in sharded.model.blocks}
    return by_name(sharded, _without_input(sharded, held))


def _without_input(sharded: Sharded, saved: dict[Section, tuple[str, ...]]) -> dict[Section, tuple[str, ...]]:
    return {kind: tuple(t for t in held if t != sharded.model.ops[kind][-1].output) for kind, held in saved.items()}


def by_name(sharded: Sharded, saved: dict[Section, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the checkpoint names of the tensors in `saved`; that of splash attention's output is `KERNEL_OUTPUT`."""
    mixed = {o.op.output for o in sharded.attentions} if runs_splash(sharded) else ()
    names = (t for held in saved.values() for t in held)
    return tuple(dict.fromkeys(KERNEL_OUTPUT if name in mixed else name for name in names))


def names_activations(sharded: Sharded) -> bool:
    """True if activations have checkpoint names: blocks save or offload some, or ranks have several pipeline stages."""
    away = sharded.plan.offloaded
    some = any(t in away for held in saved_by_replayed_blocks(sharded).values() for t in held)
    return bool(some or saved_activations(sharded) or saved_without_replay(sharded)) or chunks(sharded.plan) > 1
