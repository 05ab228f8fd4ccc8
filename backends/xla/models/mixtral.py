"""The Mixtral family in JAX: Llama with a mixture of experts in place of the MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.backends.xla.models import moe
from planc.backends.xla.models.llama import build_attention, shapes
from planc.backends.xla.models.moe import BlockWithPicks

if TYPE_CHECKING:
    from planc.backends.xla.models.hooks import Hooks
    from planc.ir.model import Model, Section

__all__ = ["build_logits", "build_loss", "shapes"]


def _block(model: Model, hooks: Hooks, kind: Section, balance: float) -> BlockWithPicks:
    return moe.build_block(model, hooks, build_attention(model, hooks, kind), balance)


build_loss, build_logits = moe.builders(_block)
