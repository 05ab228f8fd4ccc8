"""The observer of a router: picks of each expert, and the gradient of the load-balancing loss.

The load-balancing loss is that of Fedus et al. 2021, "Switch Transformers", equation 4: a X sum_i f_i P_i, with
f_i the share of the picks that expert i got and P_i its mean probability; with k picks a token it is divided by
k, and it is worked out for each sequence alone and averaged over them, as in DeepSeek-AI 2024, "DeepSeek-V3",
equations 17 to 20. So it does not depend on how a batch is cut. It is 1 for an even router, and is added for every
layer. f has no gradient; that of P is added where the picks' weights are, and the loss that is told is without it.

Shapes: B sequences, S tokens of each, T = B S tokens, X experts, k experts a token. Runs on torch 2.9 and later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from planc.ir.model import Routing


def whole(counts: Tensor) -> Tensor:
    """`counts` as they are: the picks of sequences that lie on one rank as a whole."""
    return counts


@dataclass
class Balance:
    """Observer of one router. `picked` counts its picks, [X], once for each token in a backward, and never in a
    recomputation."""

    slope: float
    """a, over the number of sequences that the loss is a mean of."""
    picked: Tensor
    total: Callable[[Tensor], Tensor] = whole
    """Counts [B, X] summed over the ranks that have other parts of the same sequences."""

    def __call__(self, weights: Tensor, logits: Tensor, chosen: Tensor, batch: int, routing: Routing) -> Tensor:
        """The weights [T, k] of picks `chosen` [T, k] by logits [T, X]; what they are stays, their gradient grows."""
        experts, k = logits.shape[-1], chosen.shape[-1]
        counts = counted(logits, chosen, batch)
        if not self.slope:
            return Watched.apply(weights, logits, None, counts, self.picked)  # type: ignore[no-any-return, no-untyped-call]
        all_counts = self.total(counts)
        tokens = all_counts.sum(1, keepdim=True) / k
        slope = self.slope * experts * all_counts / (k * tokens**2)
        each = slope[:, None].expand(-1, len(logits) // batch, -1).flatten(0, 1)
        return Watched.apply(weights, shares(logits, routing), each, counts, self.picked)  # type: ignore[no-any-return, no-untyped-call]


def counted(logits: Tensor, chosen: Tensor, batch: int) -> Tensor:
    """Picks [B, X] of each expert in each of `batch` sequences, from `chosen` [T, k], in the dtype of `logits`."""
    picks = chosen.reshape(batch, -1)
    counts: Tensor = logits.new_zeros(batch, logits.shape[-1])
    return counts.scatter_add_(1, picks, torch.ones_like(picks, dtype=logits.dtype))


def shares(logits: Tensor, routing: Routing) -> Tensor:
    """Each token's scores as fractions of their sum, [T, X], from its `logits` [T, X]: P is their mean."""
    if routing.scores == "softmax":
        return logits.softmax(-1)
    scores = logits.sigmoid()
    return scores / scores.sum(-1, keepdim=True)


class Watched(torch.autograd.Function):
    """The weights as they are. In the backward the shares get their slope, and the picks are counted."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, shares: Tensor, slope: Tensor | None, counts: Tensor, picked: Tensor
    ) -> Tensor:
        ctx.slope, ctx.counts, ctx.picked = slope, counts, picked
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.picked += ctx.counts.sum(0).to(ctx.picked.dtype)
        return grads[0], ctx.slope, None, None, None
