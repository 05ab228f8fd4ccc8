"""Traces RMSNorm as the single kernel that runs on a CUDA device; on the CPU torch runs several ops, which save more.

The kernel saves its input and one number per token, and allocates nothing else.
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
def one_kernel_norms(tracker: MemoryTracker) -> Iterator[None]:
    """A context in which `tracker` counts each `rms_norm` as one fused kernel."""

    def rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        if weight is None:
            with tracker.uncounted():
                weight = x.new_ones(shape)
        normed: Tensor = _Norm.apply(x, weight, eps or torch.finfo(x.dtype).eps, tracker)  # type: ignore[no-untyped-call]
        return normed

    with patch.object(F, "rms_norm", rms_norm):
        yield


class _Norm(torch.autograd.Function):
    """weight * x / rms(x) over the last dim, computed in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, tracker: MemoryTracker) -> Tensor:
        with tracker.uncounted():
            wide = x.float()
            scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
            normed = (wide * scale).to(x.dtype) * weight
        tracker.hold((scale, normed))
        ctx.save_for_backward(x, weight, scale)
        ctx.tracker = tracker
        return normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        grad = grads[0]
        with ctx.tracker.uncounted():
            turned, unit = (grad * weight).float(), x.float() * scale
            x_grad = (scale * (turned - unit * (turned * unit).mean(-1, keepdim=True))).to(x.dtype)
            weight_grad = (grad * unit).sum(tuple(range(x.ndim - 1))).to(weight.dtype)
        ctx.tracker.hold((x_grad, weight_grad))
        return x_grad, weight_grad, None, None
