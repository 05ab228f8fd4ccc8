"""Experts of a user's module as planc's own, which a program divides over ranks and brings tokens to.

A class that stores all experts in two weights, with or without biases, and is called with tokens [T, D], each token's
experts [T, k] and their weights [T, k], is replaced by `planc.backends.cuda.models.moe.Experts` that computes what the
class does (`expert_form`). The router and what stands around the experts go on running as they are.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from planc.backends.cuda.runtime.traced.expert_form import Form, OwnExperts, called
from planc.backends.cuda.runtime.traced.roles import ExpertLayers, Linear
from planc.backends.cuda.runtime.traced.stand_in import stand_in


class _Called:
    """Stands where a class had its experts: sorts each token's rows by expert, and sums what these make of them."""

    def __init__(self, holder: nn.Module, number: int) -> None:
        self.holder, self.number = holder, number

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        given = [*args, *kwargs.values()]
        chosen = next(t for t in given[1:] if not t.is_floating_point())
        weights = next(t for t in given[1:] if t.is_floating_point())
        return called(self.holder._modules["experts"], given[0], chosen, weights, self.number)


class OnTokens:
    """Gives a part tokens [T, D] as one sequence [1, T, D]: programs divide the dimension of a sequence's tokens."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __call__(self, x: Tensor) -> Any:
        return self.part(x[None])[0] if x.dim() == 2 else self.part(x)

    def __getattr__(self, name: str) -> Any:
        if name == "part":  # a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self.part, name)


class _Router(nn.Linear):
    """The router's layer, in the dtype of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


def experts_path(e: ExpertLayers) -> str:
    """The path, in its block, of the module that holds the experts' weights."""
    return e.params[0][0].rpartition(".")[0]


def router_of(module: nn.Module, linear: Linear) -> nn.Module:
    """The router's layer of `module`: itself, or a new one where its code does more; that goes on running."""
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
    """planc's experts with the weights of `module`, which has none after that."""
    weights = {role: module.get_parameter(name.rpartition(".")[2]) for role, name in e.by_role().items()}
    made = OwnExperts(weights, form, e.top_k)
    module._parameters.clear()
    return made


def put_experts(parent: nn.Module, name: str, number: int, experts: OwnExperts, holder: nn.Module) -> None:
    """Put planc's `experts` under `holder`; the class's code finds them at `name` of `parent`, where its own were."""
    parent._modules.pop(name)
    parent.__dict__[name] = _Called(holder, number)
    holder._modules["experts"] = experts
