"""A mixture of experts as plain modules: router, experts, and the shared expert beside them.

Shapes: T tokens, D embed, X experts, k experts a token, R rows (a token's k copies, by expert), F expert_ffn.
Nothing here knows a mesh: what divides experts over ranks stands around `Experts`, whose rows may come
from anywhere. Runs on torch 2.9 and later.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planc.backends.cuda.models.balance import Balance
from planc.backends.cuda.models.llama import FeedForward
from planc.ir.model import Model, Routing


def picks(logits: Tensor, k: int, routing: Routing) -> tuple[Tensor, Tensor]:
    """The weights and the numbers of each token's `k` experts, [..., k] each, from `logits` [..., X] in fp32.

    Of equal scores the lower number is picked first: topk would pick any, and another stack another one.
    """
    scores = logits.sigmoid() if routing.scores == "sigmoid" else logits.softmax(-1)
    preferred = _limited(scores, routing) if routing.groups > 1 else scores
    chosen = preferred.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    weights = _scores_of(scores, chosen)
    if routing.normed:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * routing.scale, chosen


def _scores_of(scores: Tensor, chosen: Tensor) -> Tensor:
    """The scores [..., X] of the experts `chosen` [..., k], [..., k]."""
    if scores.device.type != "xla":
        return scores.gather(-1, chosen)
    numbers = torch.arange(scores.shape[-1], device=scores.device)  # XLA's partitioner divides no such lookup
    return (scores[..., None, :] * (chosen[..., None] == numbers)).sum(-1)


def _limited(scores: Tensor, routing: Routing) -> Tensor:
    """Scores to pick by: none but in a token's best groups.

    A group is as good as its best expert, with sigmoid scores as its best two together (DeepSeek-V3).
    """
    groups = scores.detach().view(*scores.shape[:-1], routing.groups, -1)
    best = groups.topk(min(2, groups.shape[-1]) if routing.scores == "sigmoid" else 1, dim=-1).values.sum(-1)
    kept = torch.zeros_like(best).scatter_(-1, best.topk(routing.groups_kept, dim=-1).indices, 1.0)
    limited: Tensor = groups.masked_fill(kept[..., None] == 0, float("-inf"))
    return limited.flatten(-2)


class MoE(nn.Module):
    """[B, S, D] to [B, S, D]: each token's k experts, weighted, and the shared expert where there is one.

    Under sequence parallelism S is this rank's share.
    """

    balance: Balance | None = None
    """The observer of the router; None without one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        sizes = model.sizes
        self.routing, self.top_k = model.routing, model.top_k
        self.router = nn.Linear(sizes["embed"], sizes["experts"], bias=False)
        self.experts = Experts(sizes["experts"], sizes["embed"], sizes["expert_ffn"], model.top_k)
        self.shared = FeedForward(sizes["embed"], sizes["shared_ffn"]) if "shared_ffn" in sizes else None

    def picks(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's weights and experts, [..., k], by the router's `logits` [..., X]."""
        return picks(logits.float(), self.top_k, self.routing)

    def forward(self, x: Tensor) -> Tensor:
        # First, so that a replay may stop inside the experts: nothing after them is kept for the backward.
        shared = self.shared(x) if self.shared is not None else None
        logits = self.router(x).flatten(0, 1).float()
        weights, chosen = self.picks(logits)
        if self.balance is not None and torch.is_grad_enabled():
            weights = self.balance(weights, logits, chosen, len(x), self.routing)
        order = chosen.flatten().argsort(stable=True)
        counts = order.new_zeros(self.router.out_features).index_add_(0, chosen.flatten(), torch.ones_like(order))
        rows = x.flatten(0, 1)[order // self.top_k]
        made = self.experts(rows, weights.flatten()[order], counts)
        rows = Unsorted.apply(made, order)  # type: ignore[no-untyped-call]
        out: Tensor = rows.view(*x.shape[:2], self.top_k, -1).sum(2)
        return out if shared is None else out + shared


class Experts(nn.Module):
    """Every expert's gated MLP over its own rows.

    rows [R, D] in the order of their experts, a weight for each row [R], and how many rows each expert has,
    [X] or as a list; to weighted rows [R, D]. `top_k` of the rows are of one token, and go to as many experts.
    """

    def __init__(self, experts: int, embed: int, width: int, top_k: int = 1) -> None:
        super().__init__()
        self.top_k = top_k
        self.w1 = ExpertLinear(experts, embed, width)
        self.w3 = ExpertLinear(experts, embed, width)
        self.w2 = ExpertLinear(experts, width, embed)

    def forward(self, rows: Tensor, weights: Tensor, counts: Tensor | list[int]) -> Tensor:
        if isinstance(counts, Tensor) and rows.device.type == "xla":
            return self._in_places(rows, weights, counts)
        each = counts if isinstance(counts, list) else sizes(counts)
        # The weights multiply where the rows are narrow, and the outputs need not be kept for their gradient.
        mid = F.silu(self.w1(rows, each)) * self.w3(rows, each) * weights[:, None].to(rows.dtype)
        out: Tensor = self.w2(mid, each)
        return out

    def _in_places(self, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """The layer with a slot for every token at every expert, [X, T, D]: no shape depends on the routing."""
        experts, places = len(counts), len(rows) // self.top_k
        ends, at = counts.cumsum(0), torch.arange(len(rows), device=rows.device)
        expert = (at[:, None] >= ends).sum(1)
        place = expert * places + at - (ends - counts)[expert]

        def placed(values: Tensor) -> Tensor:
            """[R, ...] to [X, T, ...], zeros where an expert has no row."""
            empty = values.new_zeros(experts * places, *values.shape[1:])
            return empty.index_copy(0, place, values).view(experts, places, *values.shape[1:])

        x = placed(rows)
        mid = F.silu(self.w1.of_each(x)) * self.w3.of_each(x) * placed(weights)[..., None].to(rows.dtype)
        return self.w2.of_each(mid).flatten(0, 1)[place]


def sizes(counts: Tensor) -> list[int]:
    """`counts` [X], the number of rows of each expert, on the host, where the rows are split: a wait for the device."""
    each: list[int] = counts.tolist()
    return each


def of_this_rank(parameter: Tensor) -> Tensor:
    """The part of `parameter` that this rank holds."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class ExpertLinear(nn.Module):
    """One matrix an expert, [X, out, in]; on a rank that has some experts, or a part of each, these."""

    def __init__(self, experts: int, wide: int, made: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, made, wide))

    def forward(self, rows: Tensor, each: list[int]) -> Tensor:
        weight = of_this_rank(self.weight)
        return torch.cat([x @ w.T for x, w in zip(torch.split(rows, each), weight, strict=True)])

    def of_each(self, rows: Tensor) -> Tensor:
        """All experts applied to equally many `rows` each: [X, T, in] to [X, T, out]."""
        return torch.bmm(rows, self.weight.transpose(1, 2))


class Unsorted(torch.autograd.Function):
    """rows [R, D] that were put in this order, where they came from.

    A permutation, so its backward is one too, and keeps no tensor that a replay would have to make.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        ctx.order = order
        return torch.empty_like(rows).index_copy_(0, order, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0][ctx.order], None
