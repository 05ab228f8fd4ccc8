"""Attention as the one kernel that it is on a CUDA device, where the CPU has none: values narrower than keys.

The memory-efficient kernel takes them; the CPU's fused kernel does not, and torch would store every score. The kernel
saves its inputs, its output and one number a row.
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


@contextmanager
def one_kernel_attention(tracker: MemoryTracker) -> Iterator[None]:
    """A context in which attention with heads of two widths is `_Attention`, seen by `tracker` as one kernel."""
    stored = F.scaled_dot_product_attention

    def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Tensor:
        if q.shape[-1] == v.shape[-1]:
            return stored(q, k, v, *rest, **more)
        mixed: Tensor = _Attention.apply(q, k, v, tracker)  # type: ignore[no-untyped-call]
        return mixed

    with patch.object(F, "scaled_dot_product_attention", scaled_dot_product_attention):
        yield


class _Attention(torch.autograd.Function):
    """Tensors of the shapes of attention and of its gradients: q [B, H, S, E], k [B, H, T, E], v [B, H, T, V]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tracker: MemoryTracker) -> Tensor:
        mixed = torch.empty_like(q[..., : v.shape[-1]], memory_format=torch.contiguous_format)
        rows = torch.empty(q.shape[:-1], dtype=torch.float32)
        tracker.hold((mixed, rows))
        ctx.save_for_backward(q, k, v, mixed, rows)
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, *_ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None
