"""The dense Qwen3 family: Llama with a per-head norm of queries and keys before rotary positions."""

from __future__ import annotations

from torch import Tensor, nn

from planc.backends.cuda.models.llama import Attention, Block, FeedForward, Llama
from planc.ir.model import Model, Section


def build(model: Model) -> nn.Module:
    """Returns the module of a `model` of this family, on the current default device (meta included)."""
    return Llama(model, dense)


def dense(model: Model, kind: Section) -> Block:
    """Returns a block of `model` with an MLP."""
    return Block(model, NormedAttention(model, kind), FeedForward(model.sizes["embed"], model.sizes["ffn"]))


class NormedAttention(Attention):
    """Attention with q_norm and k_norm on [B, S, heads, E], over E, with one weight for all heads."""

    def __init__(self, model: Model, kind: Section) -> None:
        super().__init__(model, kind)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=model.norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=model.norm_eps)

    def _with_positions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super()._with_positions(self.q_norm(q), self.k_norm(k))
