"""Qwen3 with experts in JAX: the Qwen3 block with a mixture of experts instead of the MLP, in all or most layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.backends.xla.models import moe, qwen3
from planc.backends.xla.models.llama import build_attention, shapes
from planc.backends.xla.models.moe import BlockWithPicks, routed

if TYPE_CHECKING:
    from planc.backends.xla.models.hooks import Hooks
    from planc.ir.model import Model, Section

__all__ = ["build_logits", "build_loss", "shapes"]


def _block(model: Model, hooks: Hooks, kind: Section, balance: float) -> BlockWithPicks:
    if not routed(model, kind):
        return moe.dense(qwen3.dense(model, hooks, kind))
    return moe.build_block(model, hooks, build_attention(model, hooks, kind, normed=True), balance)


build_loss, build_logits = moe.builders(_block)
