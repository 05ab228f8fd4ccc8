"""The dense Qwen3 family in JAX: Llama with a norm over each head's queries and keys before their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.backends.xla.models import llama
from planc.backends.xla.models.llama import Block, Logits, Loss, build_attention, build_feed_forward, shapes

if TYPE_CHECKING:
    from planc.backends.xla.models.hooks import Hooks
    from planc.ir.model import Model, Section

__all__ = ["build_logits", "build_loss", "dense", "shapes"]


def build_loss(model: Model, hooks: Hooks) -> Loss:
    """`loss(params, tokens [B, S], targets [B, S])`: the mean cross entropy per token, fp32."""
    return llama.build_loss(model, hooks, dense)


def build_logits(model: Model, hooks: Hooks) -> Logits:
    """`logits(params, tokens [B, S])` -> [B, S, V]."""
    return llama.build_logits(model, hooks, dense)


def dense(model: Model, hooks: Hooks, kind: Section) -> Block:
    """A block with an MLP."""
    return llama.build_block(model, hooks, build_attention(model, hooks, kind, normed=True), build_feed_forward(hooks))
