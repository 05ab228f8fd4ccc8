"""The dense Qwen2 family: Llama with biases of queries, keys and values, as its op graph says."""

from __future__ import annotations

from planc.backends.cuda.models.llama import build

__all__ = ["build"]
