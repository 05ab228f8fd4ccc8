"""A mixture of experts as plain modules: router, experts, and an optional shared expert.

Shapes: T tokens, D embed, X experts, k experts a token, R rows (k per token, sorted by expert), F expert_ffn. Nothing
here depends on a mesh: expert parallelism wraps `Experts`, whose rows may come from any rank. Runs on torch 2.9 and
later.
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
    """Returns the router weights and indices of each token's `k` experts, both [..., k], from fp32 `logits` [..., X].

    Ties go to the lower index: topk could return any of them, and not the same one on every framework.
    """
    scores = logits.sigmoid() if routing.scores == "sigmoid" else logits.softmax(-1)
    preferred = _limited(scores, routing) if routing.groups > 1 else scores
    chosen = preferred.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    weights = _scores_of(scores, chosen)
    if routing.normed:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * routing.scale, chosen


def _scores_of(scores: Tensor, chosen: Tensor) -> Tensor:
    if scores.device.type != "xla":
        return scores.gather(-1, chosen)
    numbers = torch.arange(scores.shape[-1], device=scores.device)  # XLA's partitioner cannot shard a gather like this
    return (scores[..., None, :] * (chosen[..., None] == numbers)).sum(-1)


def _limited(scores: Tensor, routing: Routing) -> Tensor:
    """Masks with -inf the scores of experts outside a token's best groups.

    A group's score is that of its best expert; with sigmoid scores, the sum of its best two (DeepSeek-V3).
    """
    groups = scores.detach().view(*scores.shape[:-1], routing.groups, -1)
    best = groups.topk(min(2, groups.shape[-1]) if routing.scores == "sigmoid" else 1, dim=-1).values.sum(-1)
    kept = torch.zeros_like(best).scatter_(-1, best.topk(routing.groups_kept, dim=-1).indices, 1.0)
    limited: Tensor = groups.masked_fill(kept[..., None] == 0, float("-inf"))
    return limited.flatten(-2)


class MoE(nn.Module):
    """Maps [B, S, D] to [B, S, D]: the weighted sum of each token's k experts, plus the shared expert if there is one.

    Under sequence parallelism S is the local part.
    """

    balance: Balance | None = None
    """The balancing loss on the router; None if there is no such loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        sizes = model.sizes
        self.routing, self.top_k = model.routing, model.top_k
        self.router = nn.Linear(sizes["embed"], sizes["experts"], bias=False)
        self.experts = Experts(sizes["experts"], sizes["embed"], sizes["expert_ffn"], model.top_k)
        self.shared = FeedForward(sizes["embed"], sizes["shared_ffn"]) if "shared_ffn" in sizes else None

    def picks(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns each token's router weights and expert indices, both [..., k], from the `logits` [..., X]."""
        return picks(logits.float(), self.top_k, self.routing)

    def forward(self, x: Tensor) -> Tensor:
        # First, so that a recompute may stop inside the experts: nothing after them is saved for the backward.
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
    """The gated MLPs of all experts, each applied to the rows (token copies) routed to it.

    Takes rows [R, D] sorted by expert, the router weight of each row [R], and the number of rows of each expert, [X] or
    a list. Returns weighted rows [R, D]. Each token has `top_k` rows, one for each of its experts.
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
        each = self.each(rows, counts)
        # Router weights multiply the smaller activations, so the outputs need not be saved for their gradient.
        mid = F.silu(self.w1(rows, each)) * self.w3(rows, each) * weights[:, None].to(rows.dtype)
        out: Tensor = self.w2(mid, each)
        return out

    def each(self, rows: Tensor, counts: Tensor | list[int]) -> Tensor | list[int]:
        """Returns where each expert's rows end, [X], if one kernel multiplies those of all experts; else the number of
        rows of each."""
        linears = [m for m in self.children() if isinstance(m, ExpertLinear)]
        # The kernel refuses the gradients of weights on a rank without rows, of which only a list of counts can tell;
        # inductor asks for them all the same (pytorch/pytorch, pull request 192497), so compiled blocks take none.
        some = isinstance(counts, Tensor) or any(counts)
        if some and not torch.compiler.is_compiling() and all(linear.has_kernel(rows) for linear in linears):
            return torch.as_tensor(counts, device=rows.device).cumsum(0, dtype=torch.int32)
        return counts if isinstance(counts, list) else sizes(counts)

    def _in_places(self, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """Computes `forward` padded to one row per expert and token, [X, T, D]: no shape depends on the routing."""
        experts, places = len(counts), len(rows) // self.top_k
        ends, at = counts.cumsum(0), torch.arange(len(rows), device=rows.device)
        expert = (at[:, None] >= ends).sum(1)
        place = expert * places + at - (ends - counts)[expert]

        def placed(values: Tensor) -> Tensor:
            """Scatters rows [R, ...] to [X, T, ...]; the padding is zero."""
            empty = values.new_zeros(experts * places, *values.shape[1:])
            return empty.index_copy(0, place, values).view(experts, places, *values.shape[1:])

        x = placed(rows)
        mid = F.silu(self.w1.of_each(x)) * self.w3.of_each(x) * placed(weights)[..., None].to(rows.dtype)
        return self.w2.of_each(mid).flatten(0, 1)[place]


def sizes(counts: Tensor) -> list[int]:
    """Returns the row `counts` [X] of the experts as Python ints, for torch.split. Synchronises with the device."""
    each: list[int] = counts.tolist()
    return each


def of_this_rank(parameter: Tensor) -> Tensor:
    """Returns the local tensor of `parameter` if it is a DTensor, else `parameter`."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class ExpertLinear(nn.Module):
    """One matrix per expert, [X, out, in]; under expert or tensor parallelism, the local experts or their shards."""

    def __init__(self, experts: int, wide: int, made: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, made, wide))

    def has_kernel(self, rows: Tensor) -> bool:
        """True if torch has a kernel for the products of all experts: in bf16, with sides of whole 16 bytes."""
        sides = of_this_rank(self.weight).shape[1:]
        return rows.dtype == torch.bfloat16 and rows.device.type != "xla" and all(side % 8 == 0 for side in sides)

    def forward(self, rows: Tensor, each: Tensor | list[int]) -> Tensor:
        """Maps `rows` [R, in] to [R, out]. `each` has each expert's number of rows, or where its rows end, [X]."""
        weight = of_this_rank(self.weight)
        if isinstance(each, Tensor):
            return F.grouped_mm(rows, weight.transpose(1, 2), offs=each)
        return torch.cat([x @ w.T for x, w in zip(torch.split(rows, each), weight, strict=True)])

    def of_each(self, rows: Tensor) -> Tensor:
        """Applies every expert to equally many `rows`: [X, T, in] to [X, T, out]."""
        return torch.bmm(rows, self.weight.transpose(1, 2))


class Unsorted(torch.autograd.Function):
    """Undoes the sort by expert: moves row i of rows [R, D] to index `order[i]`.

    The backward of a permutation is a permutation, so it saves no tensor that a recompute would have to produce.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        ctx.order = order
        return torch.empty_like(rows).index_copy_(0, order, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0][ctx.order], None
