"""Builds AdamW, or Muon with AdamW, for the parameters of a model, which may be on several device meshes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from planc.backends.cuda.runtime.muon import Groups, MuonAndAdamW
from planc.ir.model import Model
from planc.ir.session import Settings
from planc.ir.updates import decay_of, is_orthogonalised

Key = tuple[bool, float, Any]
"""Key of a parameter group: True if Muon updates it, the weight decay, and the mesh (None: no DTensors)."""


def optimizer_of(
    modules: list[nn.Module], model: Model, settings: Settings, *, fused: bool = False
) -> torch.optim.Optimizer:
    """Returns the optimizer that `settings` name, for all trainable parameters. There is one parameter group per
    optimizer, weight decay and mesh, because torch's multi-tensor kernels need DTensors of one mesh. `fused` selects
    torch's fused kernels in place of its foreach kernels."""
    groups: dict[Key, list[nn.Parameter]] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            groups.setdefault(_key(model, settings, name, parameter), []).append(parameter)
    rest = _groups(groups, orthogonalised=False)
    numbers: dict[str, Any] = {"betas": settings.betas, "eps": settings.eps, "foreach": not fused, "fused": fused}
    if settings.optimizer == "muon":
        return MuonAndAdamW(_groups(groups, orthogonalised=True), rest, momentum=settings.momentum, **numbers)
    return torch.optim.AdamW(rest, lr=0.0, **numbers)


def _key(model: Model, settings: Settings, name: str, parameter: nn.Parameter) -> Key:
    pattern = re.sub(r"^layers\.\d+\.", "layers.*.", name)
    by_muon = settings.optimizer == "muon" and is_orthogonalised(model, pattern)
    return by_muon, decay_of(model, settings, pattern), getattr(parameter, "device_mesh", None)


def _groups(groups: dict[Key, list[nn.Parameter]], *, orthogonalised: bool) -> Groups:
    return [
        {"params": parameters, "weight_decay": decay}
        for (by_muon, decay, _), parameters in groups.items()
        if by_muon == orthogonalised
    ]
