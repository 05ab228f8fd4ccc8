"""Activations of a block that the backward keeps: those of blocks that are run again, and of the others."""

from __future__ import annotations

from planc.backends.xla.analysis.attention import KERNEL_OUTPUT, runs_splash
from planc.backends.xla.analysis.pipeline import chunks
from planc.ir.model import Section
from planc.ir.sharding import Sharded
from planc.sharding.recompute import replay, saved_without_recompute
from planc.sharding.stage_assignment import replayed_on


def every(sharded: Sharded) -> int:
    """Number of layers of which one is run again and the others keep all; 1 where all are run again."""
    return sharded.plan.recompute.every


def layers_that_save(sharded: Sharded, kind: Section, tensor: str) -> float:
    """Share of the layers of a `kind` that keep `tensor` for their backward."""
    model = sharded.model
    layers = model.layers_of(kind)
    again = sum(replayed_on(sharded.plan, rank, kind, layers) for rank in range(sharded.plan.pipeline))
    again = layers if every(sharded) == 1 else again
    keep = again * (tensor in replay(sharded.plan, kind).saved)
    keep += (layers - again) * (tensor in saved_without_recompute(model, kind))
    return keep / layers


def saved_by_replayed_blocks(sharded: Sharded) -> dict[Section, tuple[str, ...]]:
    """The tensors that blocks of each kind keep to be run again, their input among them."""
    return {kind: replay(sharded.plan, kind).saved for kind in sharded.model.blocks}


def saved_activations(sharded: Sharded) -> tuple[str, ...]:
    """Names of what blocks keep on the device that are run again, but for their input, which the scan holds anyway."""
    away = sharded.plan.offloaded
    kept = {kind: tuple(t for t in held if t not in away) for kind, held in saved_by_replayed_blocks(sharded).items()}
    return by_name(sharded, _without_input(sharded, kept))


def saved_without_replay(sharded: Sharded) -> tuple[str, ...]:
    """Names of the activations that blocks without recomputation save for the backward; () if all recompute."""
    if every(sharded) == 1:
        return ()
    held = {kind: saved_without_recompute(sharded.model, kind) for kind in sharded.model.blocks}
    return by_name(sharded, _without_input(sharded, held))


def _without_input(sharded: Sharded, saved: dict[Section, tuple[str, ...]]) -> dict[Section, tuple[str, ...]]:
    return {kind: tuple(t for t in held if t != sharded.model.ops[kind][-1].output) for kind, held in saved.items()}


def by_name(sharded: Sharded, saved: dict[Section, tuple[str, ...]]) -> tuple[str, ...]:
    """Each name once under which the program keeps the tensors of `saved`."""
    mixed = {o.op.output for o in sharded.attentions} if runs_splash(sharded) else ()
    names = (t for held in saved.values() for t in held)
    return tuple(dict.fromkeys(KERNEL_OUTPUT if name in mixed else name for name in names))


def names_activations(sharded: Sharded) -> bool:
    """True if activations get names: to save some of a block, or a block's input in a recomputed stage."""
    away = sharded.plan.offloaded
    some = any(t in away for held in saved_by_replayed_blocks(sharded).values() for t in held)
    return bool(some or saved_activations(sharded) or saved_without_replay(sharded)) or chunks(sharded.plan) > 1
