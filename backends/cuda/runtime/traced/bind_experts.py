"""Experts of a user's module as planc's own, which a program divides over ranks and brings tokens to.

A class that stores all experts in two weights, [X, 2 F, D] and [X, D, F], and is called with tokens [T, D], each
token's experts [T, k] and their weights [T, k], is replaced by `planc.backends.cuda.models.moe.Experts` with its
activation. The router and what stands around the experts go on running as they are. Whether that computes what the
class computes is tried with numbers before anything is divided.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planc.backends.cuda.models import moe
from planc.backends.cuda.runtime.traced.roles import Experts, Linear
from planc.backends.cuda.runtime.traced.stand_in import stand_in

TRIED_TOKENS, TRIED_WIDTH, TRIED_EMBED = 12, 8, 16
TRIED_WITHIN = 1e-4
"""Largest difference of the trial's outputs, which are of the order of 1."""


class OwnExperts(moe.Experts):
    """planc's experts with the activation of a user's class."""

    def __init__(self, gate_up: Tensor, down: Tensor, top_k: int, activation: Callable[[Tensor], Tensor]) -> None:
        """`gate_up` is [X, 2 F, D] with the gates' rows first, `down` [X, D, F]."""
        nn.Module.__init__(self)
        self.top_k, self.activation = top_k, activation
        width = down.shape[2]
        for name, weight in (("w1", gate_up[:, :width]), ("w3", gate_up[:, width:]), ("w2", down)):
            layer = moe.ExpertLinear(0, 0, 0)
            layer.weight = nn.Parameter(weight.detach().clone())
            self._modules[name] = layer

    def forward(self, rows: Tensor, weights: Tensor, counts: Tensor | list[int]) -> Tensor:
        each = counts if isinstance(counts, list) else moe.sizes(counts)
        mid = self.activation(self.w1(rows, each)) * self.w3(rows, each) * weights[:, None].to(rows.dtype)
        out: Tensor = self.w2(mid, each)
        return out


class _Called:
    """Stands where a class had its experts: sorts each token's rows by expert, and sums what these make of them."""

    def __init__(self, holder: nn.Module, number: int) -> None:
        self.holder, self.number = holder, number

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        given = [*args, *kwargs.values()]
        x = given[0]
        chosen = next(t for t in given[1:] if not t.is_floating_point())
        weights = next(t for t in given[1:] if t.is_floating_point())
        order = chosen.flatten().argsort(stable=True)
        counts = order.new_zeros(self.number).index_add_(0, chosen.flatten(), torch.ones_like(order))
        rows = x[order // chosen.shape[-1]]
        experts: Any = self.holder._modules["experts"]
        # In fp32 on their way, as planc's own router has them, whatever dtype the class rounds them to.
        made = experts(rows, weights.flatten().float()[order], counts)
        made = moe.Unsorted.apply(made, order)  # type: ignore[no-untyped-call]
        out: Tensor = made.view(*chosen.shape, -1).sum(1)
        return out


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
        return F.linear(x, self.weight.to(x.dtype))


def experts_path(e: Experts) -> str:
    """The path, in its block, of the module that holds the experts' weights."""
    return e.params[0][0].rpartition(".")[0]


def router_of(module: nn.Module, linear: Linear) -> nn.Module:
    """The router's layer of `module`: itself, or a new one where its code does more; that goes on running."""
    if type(module) is nn.Linear:
        return module
    layer = _Router(linear.taken, linear.made, bias=False, device="meta")
    name = linear.weight.rpartition(".")[2]
    weight: Any = module._parameters.pop(name)
    layer.weight = weight
    module.__dict__[name] = stand_in(tuple(weight.shape), layer=OnTokens(layer))
    return layer


def own_experts(module: nn.Module, e: Experts, activation: Callable[[Tensor], Tensor]) -> OwnExperts:
    """planc's experts with the weights of `module`."""
    gate_up, down = (module.get_parameter(n.rpartition(".")[2]) for n in _by_size(e))
    return OwnExperts(gate_up, down, e.top_k, activation)


def _by_size(e: Experts) -> list[str]:
    """The names of both weights, gate and up first."""
    sizes = {name: torch.Size(shape).numel() for name, shape in e.params}
    return sorted(sizes, key=lambda name: -sizes[name])


def activation_of(module: nn.Module, e: Experts) -> Callable[[Tensor], Tensor] | None:
    """The activation with which planc's experts compute what `module` does; None where no one does."""
    shapes = dict(e.params)
    names = _by_size(e)
    large, small = (shapes[n] for n in names) if len(names) == 2 else ((), ())
    if e.router.bias or len(large) != 3 or len(small) != 3 or large[2] != small[1] or large[1] != 2 * small[2]:
        return None
    if len(inspect.signature(module.forward).parameters) != 3:
        return None
    own = [a for a in vars(module).values() if callable(a)] + list(module.children())
    return next((a for a in (*own, F.silu, F.gelu) if _computes(module, e, a)), None)


def _computes(module: nn.Module, e: Experts, activation: Any) -> bool:
    """True where `module` and planc's experts with this activation make the same of the same random numbers."""
    random = torch.Generator().manual_seed(0)
    memo: dict[int, Any] = {}
    weights = []
    for name, shape in zip(_by_size(e), ((2 * TRIED_WIDTH, TRIED_EMBED), (TRIED_EMBED, TRIED_WIDTH)), strict=True):
        weight = nn.Parameter(torch.randn(e.experts, *shape, generator=random))
        memo[id(module.get_parameter(name.rpartition(".")[2]))] = weight
        weights.append(weight)
    shell = copy.deepcopy(module, memo).eval()
    x = torch.randn(TRIED_TOKENS, TRIED_EMBED, generator=random)
    scores = torch.rand(TRIED_TOKENS, e.experts, generator=random).topk(e.top_k, -1)
    holder = nn.Module()
    try:
        with torch.no_grad():
            holder._modules["experts"] = OwnExperts(weights[0], weights[1], e.top_k, activation)
            expected = shell(x, scores.indices, scores.values)
            found = _Called(holder, e.experts)(x, scores.indices, scores.values)
            return torch.allclose(found, expected, rtol=TRIED_WITHIN, atol=TRIED_WITHIN)
    except Exception:  # the class's own code, with sizes that it may not expect
        return False


def put_experts(parent: nn.Module, name: str, number: int, experts: OwnExperts, holder: nn.Module) -> None:
    """Put planc's `experts` under `holder`; the class's code finds them at `name` of `parent`, where its own were."""
    parent._modules.pop(name)
    parent.__dict__[name] = _Called(holder, number)
    holder._modules["experts"] = experts
