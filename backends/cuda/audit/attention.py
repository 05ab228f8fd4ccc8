"""Traces attention as the single kernel that runs on a CUDA device, in two cases where the CPU has no such kernel.

If the head dims of keys and values differ, CUDA uses its memory-efficient kernel; torch on the CPU would store the full
score matrix. If there are fewer queries than keys (the last tokens), CUDA's flash kernel needs no mask, and the CPU's
does. The CUDA kernels save their inputs, their output and one number per query and head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.models.llama import Core

LOWER_RIGHT = object()
"""Stands in for `causal_lower_right`, torch's mask for queries that are the last rows of the keys."""


@contextmanager
def one_kernel_attention(tracker: MemoryTracker) -> Iterator[None]:
    """A context in which `tracker` counts attention as one fused kernel, also where the CPU has none."""
    stored, masked = F.scaled_dot_product_attention, Core._attention_mask

    def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Tensor:
        if q.shape[-1] == v.shape[-1] and more.get("attn_mask") is not LOWER_RIGHT:
            return stored(q, k, v, *rest, **more)
        mixed: Tensor = _Attention.apply(q, k, v, tracker)  # type: ignore[no-untyped-call]
        return mixed

    def attention_mask(core: Core, *sizes: Any) -> Any:
        return masked(core, *sizes) if core.window else LOWER_RIGHT

    with (
        patch.object(F, "scaled_dot_product_attention", scaled_dot_product_attention),
        patch.object(Core, "_attention_mask", attention_mask),
    ):
        yield


class _Attention(torch.autograd.Function):
    """Allocates attention's output and gradients, uncomputed: q [B, H, S, E], k [B, H, T, E], v [B, H, T, V]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tracker: MemoryTracker) -> Tensor:
        mixed = q.new_empty(*q.shape[:-1], v.shape[-1])
        rows = torch.empty(q.shape[:-1], dtype=torch.float32)
        tracker.hold((mixed, rows))
        ctx.save_for_backward(q, k, v, mixed, rows)
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, *_ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None
