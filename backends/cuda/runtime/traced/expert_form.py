"""Finds out how a user's class stores its experts and what they compute, by running it on random numbers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planc.backends.cuda.models import moe
from planc.backends.cuda.runtime.traced.copied import copied
from planc.backends.cuda.runtime.traced.roles import ExpertLayers, Shape

TRIED_TOKENS, TRIED_WIDTH, TRIED_EMBED = 12, 8, 24
TRIED_WITHIN = 1e-4
"""Tolerance of the outputs of that run, which are of order 1."""

Gate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Form:
    """How a class stores the gate, up and down weights of its experts, and the function between the matmuls."""

    transposed: bool
    """True for weights [X, in, out]."""
    alternate: bool
    """True if gates and ups are interleaved; else all gates come first."""
    gate: Gate
    """Maps the outputs of the gate and up matmuls, [R, F] each, to the input of the down matmul [R, F]; elementwise."""

    def stored(self, role: str, experts: int, embed: int, width: int) -> Shape:
        """Returns the shape of the parameter of `role` (`ExpertLayers.by_role`) for this number of `experts`, where
        `width` is one expert's hidden width."""
        sizes = (embed, 2 * width) if role.startswith("up") else (width, embed)
        if role.endswith("_bias"):
            return (experts, sizes[1])
        return (experts, *sizes) if self.transposed else (experts, *sizes[::-1])

    def halves(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Splits `both` [X, 2 F, ...] into the rows of gates and those of ups."""
        return (both[:, ::2], both[:, 1::2]) if self.alternate else tuple(both.chunk(2, dim=1))  # type: ignore[return-value]


class BiasedExpertLinear(moe.ExpertLinear):
    """A linear layer of planc's experts, with a bias per expert."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.weight = copied(weight, weight.detach().clone(memory_format=torch.contiguous_format))
        self.bias = None
        if bias is not None:
            self.bias = copied(bias, bias.detach().clone(memory_format=torch.contiguous_format))

    def has_kernel(self, rows: Tensor) -> bool:
        return self.bias is None and super().has_kernel(rows)

    def forward(self, rows: Tensor, each: Tensor | list[int], scales: Tensor | None = None) -> Tensor:
        """Maps `rows` [R, in] to [R, out]; `scales` [R] multiply the bias of each row."""
        made = super().forward(rows, each)
        if self.bias is None:
            return made
        assert isinstance(each, list), "no kernel has a bias"
        bias = moe.of_this_rank(self.bias)
        added = torch.cat([own.expand(number, -1) for own, number in zip(bias, each, strict=True)])
        return made + (added if scales is None else added * scales[:, None].to(added.dtype))


class OwnExperts(moe.Experts):
    """planc's experts with the weights and the gating of a user's class."""

    def __init__(self, weights: Mapping[str, Tensor], form: Form, top_k: int) -> None:
        """`weights` are the parameters of the user's class, by role (`ExpertLayers.by_role`)."""
        nn.Module.__init__(self)
        self.top_k, self.gate = top_k, form.gate
        up, down = ((w.transpose(1, 2) if form.transposed else w) for w in (weights["up"], weights["down"]))
        biases = form.halves(weights["up_bias"]) if "up_bias" in weights else (None, None)
        for name, weight, bias in zip(("w1", "w3"), form.halves(up), biases, strict=True):
            self._modules[name] = BiasedExpertLinear(weight, bias)
        self._modules["w2"] = BiasedExpertLinear(down, weights.get("down_bias"))

    def forward(self, rows: Tensor, weights: Tensor, counts: Tensor | list[int]) -> Tensor:
        each = self.each(rows, counts)
        mid = self.gate(self.w1(rows, each), self.w3(rows, each)) * weights[:, None].to(rows.dtype)
        out: Tensor = self.w2(mid, each, weights)
        return out


def called(experts: Any, x: Tensor, chosen: Tensor, weights: Tensor, number: int) -> Tensor:
    """Returns the output [T, D] of planc's `experts` for tokens `x` [T, D], each routed to the experts `chosen` [T, k]
    with router `weights` [T, k]. `number` is the number of experts."""
    order = chosen.flatten().argsort(stable=True)
    counts = order.new_zeros(number).index_add_(0, chosen.flatten(), torch.ones_like(order))
    rows = x[order // chosen.shape[-1]]
    # In fp32, like those of planc's router, whatever dtype the class rounds them to.
    made = experts(rows, weights.flatten().float()[order], counts)
    made = moe.Unsorted.apply(made, order)  # type: ignore[no-untyped-call]
    out: Tensor = made.view(*chosen.shape, -1).sum(1)
    return out


def form_of(module: nn.Module, e: ExpertLayers) -> Form | None:
    """Returns how `module` stores its experts; None if planc's experts do not compute the same for any form."""
    shapes, roles = dict(e.params), e.by_role()
    if len(inspect.signature(module.forward).parameters) != 3 or not {"up", "down"} <= set(roles):
        return None
    embed = e.router.taken
    width = torch.Size(shapes[roles["down"]]).numel() // (e.experts * embed)
    for form in _forms(module):
        fits = all(shapes[n] == form.stored(role, e.experts, embed, width) for role, n in roles.items())
        if fits and len(roles) == len(e.params) and _computes(module, e, form):
            return form
    return None


def _forms(module: nn.Module) -> Iterator[Form]:
    """Yields the forms that `module` may have, from its activations and its methods with one tensor argument."""
    own = [a for a in vars(module).values() if callable(a)] + list(module.children())
    for activation in (*own, F.silu, F.gelu):
        for transposed in (False, True):
            for alternate in (False, True):
                yield Form(transposed, alternate, partial(_product, activation))
    for name, method in inspect.getmembers(type(module), inspect.isfunction):
        if name != "forward" and not hasattr(nn.Module, name) and len(inspect.signature(method).parameters) == 2:
            for transposed in (False, True):
                for alternate in (False, True):
                    yield Form(transposed, alternate, partial(_joined, getattr(module, name), alternate))


def _product(activation: Any, gates: Tensor, ups: Tensor) -> Tensor:
    made: Tensor = activation(gates) * ups
    return made


def _joined(method: Any, alternate: bool, gates: Tensor, ups: Tensor) -> Tensor:
    """Applies the user's own `method` to gates and ups concatenated in the class's order."""
    both = torch.stack((gates, ups), dim=-1).flatten(-2) if alternate else torch.cat((gates, ups), dim=-1)
    made: Tensor = method(both)
    return made


def _computes(module: nn.Module, e: ExpertLayers, form: Form) -> bool:
    """True if `module` and planc's experts of this form compute the same on random numbers.

    planc's experts run as two shards of the hidden width, so the function between the matmuls must be elementwise.
    """
    random = torch.Generator().manual_seed(0)
    memo: dict[int, Any] = {}
    weights: dict[str, Tensor] = {}
    for role, name in e.by_role().items():
        shape = form.stored(role, e.experts, TRIED_EMBED, TRIED_WIDTH)
        weights[role] = nn.Parameter(torch.randn(shape, generator=random))
        memo[id(module.get_parameter(name.rpartition(".")[2]))] = weights[role]
    shell = copy.deepcopy(module, memo).eval()
    x = torch.randn(TRIED_TOKENS, TRIED_EMBED, generator=random)
    scores = torch.rand(TRIED_TOKENS, e.experts, generator=random).topk(e.top_k, -1)
    try:
        with torch.no_grad():
            whole = OwnExperts(weights, form, e.top_k)
            expected = shell(x, scores.indices, scores.values)
            first, second = (
                called(_part(whole, rank), x, scores.indices, scores.values, e.experts) for rank in range(2)
            )
            found = first + second
            return torch.allclose(found, expected, rtol=TRIED_WITHIN, atol=TRIED_WITHIN)
    except Exception:  # the class's own code may reject these sizes
        return False


def _part(whole: OwnExperts, rank: int) -> OwnExperts:
    """Returns one of two shards of the experts' hidden width; only that of rank 0 has the output biases."""
    part = copy.deepcopy(whole)
    half = slice(rank * TRIED_WIDTH // 2, (rank + 1) * TRIED_WIDTH // 2)
    for name, layer in part.named_children():
        own: Any = layer
        own.weight = nn.Parameter(own.weight.detach()[:, :, half] if name == "w2" else own.weight.detach()[:, half])
        if own.bias is not None and name != "w2":
            own.bias = nn.Parameter(own.bias.detach()[:, half])
        elif own.bias is not None and rank:
            own.bias = None
    return part
