"""The dense Qwen2 family in JAX: Llama with biases of queries, keys and values, as its op graph says."""

from __future__ import annotations

from planc.backends.xla.models.llama import build_logits, build_loss, shapes

__all__ = ["build_logits", "build_loss", "shapes"]
