"""The attention of the emitted JAX program, for which XLA has no fused kernel."""

from __future__ import annotations

from planc.ir.realised import AttentionKernel
from planc.ir.sharding import Sharded

FP32_SCORES = AttentionKernel(forward_bytes=12.0, backward_bytes=24.0, replay_bytes=8.0, windows_by_mask=True)
"""`jax.nn.dot_product_attention`, and a ring of such products: scores in fp32, every one of them computed. Forward they
are written once and read twice (statistics of the softmax, product with the values). Read from programs that libtpu
0.0.42.1 compiled for v5p, bf16, heads of 128 and 2048 to 4096 tokens: 12.2 to 13.1 bytes a score forward, 32 to 34 for
the replay of the scores (8) and the backward together, without queries, keys and values; 4 and 10 times the head's
width in FLOPs a score."""


def attention_kernel(sharded: Sharded) -> AttentionKernel:
    """Scores in fp32 in device memory, whatever the layout."""
    return FP32_SCORES
