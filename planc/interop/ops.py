"""Selects ops of a model for the sentences of a plan: all linear layers, all norms, the ops of one block."""

from __future__ import annotations

from planc.frameworks.torchtitan import EVERY_OTHER
from planc.ir.model import EXPERTS, Model, Op
from planc.language.op_names import covering

_LINEAR = ("projection", "ffn", EXPERTS)
"""Regions of blocks whose matmuls are linear layers; the router and attention's own matmuls are not."""


def block_ops(model: Model) -> tuple[Op, ...]:
    """Returns the ops in the blocks of `model`; an op of several kinds of block is returned once."""
    return tuple({op.name: op for kind in model.blocks for op in model.ops[kind]}.values())


def linear_layers(model: Model, *, experts: bool = True) -> tuple[str, ...]:
    """Returns names that match the linear layers in the blocks of `model`, in experts only if `experts` is True."""
    matmuls = [op for op in block_ops(model) if op.kind == "matmul"]
    chosen = [op.name for op in matmuls if op.region in _LINEAR and (experts or op.region != EXPERTS)]
    return tuple(covering(chosen, matmuls))


def of_kind_saved(model: Model, *kinds: str) -> tuple[str, ...]:
    """Returns names that match the block ops of one of the `kinds` (norm, rope, ...) whose output is saved for the
    backward, so that recomputing them saves memory."""
    ops = block_ops(model)
    saved = {tensor for op in ops for tensor in op.saves}
    return tuple(covering([op.name for op in ops if op.kind in kinds and op.output in saved], ops))


def run_again_by_list(model: Model) -> tuple[str, ...]:
    """Returns the ops of `model` that torchtitan's selective checkpointing recomputes: norms, rotary embeddings and
    adds whose outputs the backward needs, the activation, and every second matmul of a block."""
    kept = (*of_kind_saved(model, "norm", "rope", "add"), *EVERY_OTHER)
    return existing(model, *dict.fromkeys(kept))


def existing(model: Model, *names: str) -> tuple[str, ...]:
    """Returns the `names` (of ops, or prefixes such as `ffn`) that match an op in a block of `model`."""
    known = [op.name for op in block_ops(model)]
    return tuple(n for n in names if any(op == n or op.startswith(f"{n}.") for op in known))
