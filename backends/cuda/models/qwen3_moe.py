"""Qwen3 with experts: the Qwen3 block with a mixture of experts in place of the MLP, in all layers or most."""

from __future__ import annotations

from torch import nn

from planc.backends.cuda.models.llama import Block, Llama
from planc.backends.cuda.models.moe import MoE
from planc.backends.cuda.models.qwen3 import NormedAttention, dense
from planc.ir.model import Model, Section


def build(model: Model) -> nn.Module:
    """Returns the module of a `model` of this family, on the current default device (meta included)."""
    return Llama(model, _block)


def _block(model: Model, kind: Section) -> Block:
    if not any(op.kind == "route" for op in model.ops[kind]):
        return dense(model, kind)
    return Block(model, NormedAttention(model, kind), MoE(model), "moe")
