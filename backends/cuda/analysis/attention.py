"""The kernel of attention that the emitted torch program calls."""

from __future__ import annotations

from planc.ir.realised import AttentionKernel
from planc.ir.sharding import Sharded

FUSED = AttentionKernel(windows_by_mask=True)
"""`scaled_dot_product_attention`: flash, cuDNN or memory-efficient attention, none of which stores a score. A window
of tokens is given to it as a mask, with which it computes every score."""


def attention_kernel(sharded: Sharded) -> AttentionKernel | None:
    """torch's fused kernel; None where the plan in `sharded` asks for `attention core as unfused`, which costs what it
    says."""
    chosen = sharded.plan.attention
    return None if chosen is not None and chosen.method == "unfused" else FUSED
