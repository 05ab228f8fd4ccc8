"""Activations of a block that the backward keeps: those of blocks that are run again, and of the others."""

from __future__ import annotations

from planc.backends.xla.analysis.attention import KERNEL_OUTPUT, attentions, runs_splash
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


def saved_activations(sharded: Sharded) -> tuple[str, ...]:
    """Names of what blocks keep that are run again, but for their input, which the scan holds anyway."""
    model = sharded.model
    return _named(sharded, {kind: replay(sharded.plan, kind).saved for kind in model.blocks})


def saved_without_replay(sharded: Sharded) -> tuple[str, ...]:
    """Names of what the other blocks keep: all that a backward reads; () where every block is run again."""
    if every(sharded) == 1:
        return ()
    return _named(sharded, {kind: saved_without_recompute(sharded.model, kind) for kind in sharded.model.blocks})


def _named(sharded: Sharded, saved: dict[Section, tuple[str, ...]]) -> tuple[str, ...]:
    names = (t for kind, held in saved.items() for t in held if t != sharded.model.ops[kind][-1].output)
    mixed = {o.op.output for o in attentions(sharded)} if runs_splash(sharded) else ()
    return tuple(dict.fromkeys(KERNEL_OUTPUT if name in mixed else name for name in names))


def names_activations(sharded: Sharded) -> bool:
    """True if activations get names: to save some of a block, or a block's input in a recomputed stage."""
    return bool(saved_activations(sharded) or saved_without_replay(sharded)) or chunks(sharded.plan) > 1
