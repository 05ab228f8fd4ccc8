"""Names groups of a model's ops for sentences: all linear layers, all norms, the ops of one block."""

from __future__ import annotations

from planc.frameworks.torchtitan import EVERY_OTHER
from planc.ir.model import EXPERTS, Model, Op
from planc.language.op_names import covering

_LINEAR = ("projection", "ffn", EXPERTS)
"""Regions of blocks whose matmuls are linear layers; the router and attention's own matmuls are not."""


def block_ops(model: Model) -> tuple[Op, ...]:
    """Returns the ops of every kind of block of `model`, each once."""
    return tuple({op.name: op for kind in model.blocks for op in model.ops[kind]}.values())


def linear_layers(model: Model, *, experts: bool = True) -> tuple[str, ...]:
    """Returns names that match the linear layers of the blocks of `model`, including experts unless `experts` is
    False."""
    matmuls = [op for op in block_ops(model) if op.kind == "matmul"]
    chosen = [op.name for op in matmuls if op.region in _LINEAR and (experts or op.region != EXPERTS)]
    return tuple(covering(chosen, matmuls))


def of_kind_saved(model: Model, *kinds: str) -> tuple[str, ...]:
    """Returns names that match the ops of the blocks whose kind is in `kinds` and whose outputs the backward needs.
    Recomputing these ops saves memory."""
    ops = block_ops(model)
    saved = {tensor for op in ops for tensor in op.saves}
    return tuple(covering([op.name for op in ops if op.kind in kinds and op.output in saved], ops))


def run_again_by_list(model: Model) -> tuple[str, ...]:
    """Returns the ops of `model` that are recomputed where torch's list of saved ops decides
    (`planc.frameworks.torchtitan`): norms, rotary embeddings and adds whose outputs the backward needs, the activation,
    and every other matmul of a block."""
    kept = (*of_kind_saved(model, "norm", "rope", "add"), *EVERY_OTHER)
    return existing(model, *dict.fromkeys(kept))


def existing(model: Model, *names: str) -> tuple[str, ...]:
    """Returns those of `names` (names or prefixes of names of ops) that match an op of `model`."""
    known = [op.name for op in block_ops(model)]
    return tuple(n for n in names if any(op == n or op.startswith(f"{n}.") for op in known))
