"""The Mixtral family: Llama with a mixture of experts in place of the MLP."""

from __future__ import annotations

from torch import nn

from planc.backends.cuda.models.llama import Attention, Block, Llama
from planc.backends.cuda.models.moe import MoE
from planc.ir.model import Model, Section


def build(model: Model) -> nn.Module:
    """Returns the module of a `model` of this family, on the current default device (meta included)."""
    return Llama(model, _block)


def _block(model: Model, kind: Section) -> Block:
    return Block(model, Attention(model, kind), MoE(model), "moe")
