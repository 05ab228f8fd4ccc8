"""Adds LoRA to an unsharded module and freezes its parameters. This does not use the emitted program, which is compared
with it."""

from __future__ import annotations

import re

import torch.nn.functional as F
from torch import Tensor, nn

from planc.ir.plan import Plan


def fine_tune(model: nn.Module, plan: Plan) -> None:
    """Freezes the parameters of `model` that `plan` freezes, and adds the plan's LoRA matrices, in place."""
    lora = plan.lora
    if lora is not None:
        updated = {op.module for kind in plan.model.blocks for op in plan.model.ops[kind] if op.update}
        for path, layer in list(model.named_modules()):
            if in_every_layer(path) in updated:
                assert isinstance(layer, nn.Linear), path
                model.set_submodule(path, WithUpdate(layer, lora.rank, lora.alpha))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not plan.model.param[in_every_layer(name)].frozen)


def in_every_layer(name: str) -> str:
    """Returns the `name` of a module or parameter with the layer index replaced by `*`, as the op graph names it."""
    return re.sub(r"^layers\.\d+\.", "layers.*.", name)


class WithUpdate(nn.Module):
    """A linear layer [.., in] to [.., out] with LoRA: A [rank, in] and B [out, rank], scaled by alpha / rank."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: int) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_a = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_b = nn.Parameter(layer.weight.new_empty(layer.out_features, rank))
        self.strength = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + (x @ self.lora_a.T) @ self.lora_b.T * self.strength
