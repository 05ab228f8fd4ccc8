"""Replaces the experts of a user's module by planc's, which a program can shard and dispatch tokens to.

This applies to a class that stores all experts in two weights, with or without biases, and takes tokens [T, D], the
expert indices [T, k] and the router weights [T, k] of each token. `expert_form` checks that planc's experts compute the
same. The router and the code around the experts run unchanged.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from planc.backends.cuda.runtime.traced.expert_form import Form, OwnExperts, called
from planc.backends.cuda.runtime.traced.roles import ExpertLayers, Linear
from planc.backends.cuda.runtime.traced.stand_in import stand_in


class _Called:
    """Replaces the user's experts: sorts tokens by expert, calls planc's experts, and sums the outputs per token."""

    def __init__(self, holder: nn.Module, number: int) -> None:
        self.holder, self.number = holder, number

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        given = [*args, *kwargs.values()]
        chosen = next(t for t in given[1:] if not t.is_floating_point())
        weights = next(t for t in given[1:] if t.is_floating_point())
        return called(self.holder._modules["experts"], given[0], chosen, weights, self.number)


class OnTokens:
    """Passes flattened tokens [T, D] to a module as one sequence [1, T, D], because programs shard the sequence dim."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __call__(self, x: Tensor) -> Any:
        return self.part(x[None])[0] if x.dim() == 2 else self.part(x)

    def __getattr__(self, name: str) -> Any:
        if name == "part":  # a copy without attributes yet
            raise AttributeError(name)
        return getattr(self.part, name)


class _Router(nn.Linear):
    """The router's linear layer, computed in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


def experts_path(e: ExpertLayers) -> str:
    """Returns the path, relative to the block, of the module with the weights of the experts `e`."""
    return e.params[0][0].rpartition(".")[0]


def router_of(module: nn.Module, linear: Linear) -> nn.Module:
    """Returns the router's `linear` layer: `module` itself if it is an nn.Linear, else a new layer with its weight,
    which the code of `module` calls."""
    if type(module) is nn.Linear:
        return module
    layer = _Router(linear.taken, linear.made, bias=bool(linear.bias), device="meta")
    name, bias = (path.rpartition(".")[2] for path in (linear.weight, linear.bias))
    weight: Any = module._parameters.pop(name)
    layer.weight = weight
    module.__dict__[name] = stand_in(tuple(weight.shape), layer=OnTokens(layer))
    if bias:
        layer.bias = module._parameters.pop(bias)  # type: ignore[assignment]
        module.__dict__[bias] = None
    return layer


def own_experts(module: nn.Module, e: ExpertLayers, form: Form) -> OwnExperts:
    """Moves the weights of `module` (stored in this `form`) to planc's experts, and returns these."""
    weights = {role: module.get_parameter(name.rpartition(".")[2]) for role, name in e.by_role().items()}
    made = OwnExperts(weights, form, e.top_k)
    module._parameters.clear()
    return made


def put_experts(parent: nn.Module, name: str, number: int, experts: OwnExperts, holder: nn.Module) -> None:
    """Registers planc's `experts` (their number is `number`) under `holder`. The user's code calls them as the child
    `name` of `parent`."""
    parent._modules.pop(name)
    parent.__dict__[name] = _Called(holder, number)
    holder._modules["experts"] = experts
