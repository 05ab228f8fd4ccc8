"""The dense Qwen3 family in JAX: Llama with an RMS norm on each head's queries and keys before RoPE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.backends.xla.models import llama
from planc.backends.xla.models.llama import Block, Logits, Loss, build_attention, build_feed_forward, shapes

if TYPE_CHECKING:
    from planc.backends.xla.models.hooks import Hooks
    from planc.ir.model import Model, Section

__all__ = ["build_logits", "build_loss", "dense", "shapes"]


def build_loss(model: Model, hooks: Hooks) -> Loss:
    """Return `loss(params, tokens [B, S], targets [B, S])`, the mean cross entropy per token in fp32."""
    return llama.build_loss(model, hooks, dense)


def build_logits(model: Model, hooks: Hooks) -> Logits:
    """Return `logits(params, tokens [B, S])` -> [B, S, V]."""
    return llama.build_logits(model, hooks, dense)


def dense(model: Model, hooks: Hooks, kind: Section) -> Block:
    """Return a block with an MLP."""
    return llama.build_block(model, hooks, build_attention(model, hooks, kind, normed=True), build_feed_forward(hooks))
