"""A module without its weights, to be run on meta or fake tensors."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def without_weights(module: nn.Module) -> nn.Module:
    """A copy of `module` on the meta device; no weight is copied."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)
