"""Counts a router's tokens per expert, and adds the gradient of the load-balancing loss.

The loss is that of Fedus et al. 2021, "Switch Transformers", equation 4: a X sum_i f_i P_i, with f_i the fraction of
tokens routed to expert i and P_i the router's mean probability of i. With k experts a token it is divided by k. It is
computed per sequence and averaged, as in DeepSeek-AI 2024, "DeepSeek-V3", equations 17 to 20, so it does not depend on
how a batch is split. It is 1 for an even router, and is added for every layer. f has no gradient; that of P is added in
the backward of the router weights. The reported loss does not include the balancing loss.

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
    """Returns `counts` unchanged: the sum over ranks if each sequence is on one rank."""
    return counts


@dataclass
class Balance:
    """The balancing loss of one router. `picked` [X] counts the tokens routed to each expert. The count is updated in
    the backward, which a recompute does not repeat."""

    slope: float
    """The coefficient a, divided by the number of sequences that the loss averages over."""
    picked: Tensor
    total: Callable[[Tensor], Tensor] = whole
    """Sums counts [B, X] over the ranks that have other tokens of the same sequences."""

    def __call__(self, weights: Tensor, logits: Tensor, chosen: Tensor, batch: int, routing: Routing) -> Tensor:
        """Returns the router `weights` [T, k] unchanged; their backward adds the gradient of the loss to `logits` [T,
        X]. `chosen` [T, k] are the expert indices."""
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
    """Returns the number of times that each expert is chosen in each of `batch` sequences, [B, X], from the indices
    `chosen` [T, k], in the dtype of `logits`."""
    picks = chosen.reshape(batch, -1)
    counts: Tensor = logits.new_zeros(batch, logits.shape[-1])
    return counts.scatter_add_(1, picks, torch.ones_like(picks, dtype=logits.dtype))


def shares(logits: Tensor, routing: Routing) -> Tensor:
    """Returns the router's probabilities [T, X] from `logits` [T, X]: softmax, or normalized sigmoid scores."""
    if routing.scores == "softmax":
        return logits.softmax(-1)
    scores = logits.sigmoid()
    return scores / scores.sum(-1, keepdim=True)


class Watched(torch.autograd.Function):
    """The identity on router weights; its backward adds the loss's gradient to the probabilities, and counts tokens."""

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
