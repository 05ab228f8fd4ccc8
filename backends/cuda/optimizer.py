"""AdamW over the parameters of a model that may lie on several meshes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from planc.ir.model import Model
from planc.ir.session import Settings


def adamw(modules: list[nn.Module], model: Model, settings: Settings, *, fused: bool = False) -> torch.optim.Optimizer:
    """Decay only where `Param.decay` says so. One group per decay and mesh.

    The multi-tensor kernels take DTensors of one mesh at a time, and a norm's weight may lie on a
    smaller mesh than a matrix.
    """
    decays = {p.name: p.decay for p in model.params}
    groups: dict[tuple[bool, Any], list[nn.Parameter]] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            decay = decays[re.sub(r"^layers\.\d+\.", "layers.*.", name)]
            groups.setdefault((decay, getattr(parameter, "device_mesh", None)), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": settings.weight_decay if decay else 0.0}
            for (decay, _), parameters in groups.items()
        ],
        lr=0.0,
        betas=settings.betas,
        eps=settings.eps,
        foreach=not fused,
        fused=fused,
    )
