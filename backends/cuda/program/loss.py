"""The loss: cross entropy in fp32, over a vocabulary that ranks may divide, and in chunks of rows.

A program has one of the functions `..._loss_fn`, as `loss_fn`.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from planc.backends.cuda.program.facts import FACTS
from planc.backends.cuda.program.names import LOSS_CHUNKS


def leave_head_to_loss(model: nn.Module) -> None:
    """The head returns its input, and loss_fn multiplies it by the head's weight, chunk by chunk."""
    # FACTS.chunks_cause
    if not FACTS.pipeline or getattr(model, FACTS.head) is not None:
        getattr(model, FACTS.head).forward = lambda hidden, *weight: hidden


def whole_loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in fp32. logits [B, S, FACTS.vocab], targets [B, S]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))


def cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    count: int,
    gradient: torch.Tensor | None,
    vocab: Annotated[int, FACTS.divides_vocab],
    mesh: Annotated[DeviceMesh, FACTS.divides_vocab],
) -> torch.Tensor:
    """The sum of the cross entropies in fp32 of logits [rows, FACTS.vocab], over `count`.

    Its gradient is written to `gradient`, which may be the logits, unless None.FACTS.of_vocab
    """
    if FACTS.divides_vocab:
        # FACTS.vocab_cause
        group = mesh.get_group()
        most = logits.amax(dim=-1, keepdim=True).float()
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        scores = logits - most
        own = targets[:, None] - mesh.get_local_rank() * -(-vocab // mesh.size())
        mine = (own >= 0) & (own < scores.shape[1])
        own = own.where(mine, 0)
        picked = scores.gather(1, own) * mine
    else:
        targets = targets[:, None]
        scores = logits - logits.amax(dim=-1, keepdim=True).float()
        picked = scores.gather(1, targets)
    sums = scores.exp_().sum(dim=-1, keepdim=True)
    if FACTS.divides_vocab:
        dist.all_reduce(picked, group=group)
        dist.all_reduce(sums, group=group)
    if gradient is not None:
        shares = (own, -sums * mine) if FACTS.divides_vocab else (targets, -sums)
        torch.div(scores.scatter_add_(1, *shares), sums * count, out=gradient)
    return (sums.log() - picked).sum() / count


class DividedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy in fp32 of logits [rows, FACTS.vocab], a share of the vocabulary on each rank.

    The forward computes the gradient too, so that nothing in fp32 is saved.
    """

    @staticmethod
    def forward(ctx, logits, targets, vocab: int, mesh: DeviceMesh, backward: bool) -> torch.Tensor:
        gradient = torch.empty_like(logits) if backward else None
        ctx.save_for_backward(gradient)
        return cross_entropy(logits, targets, len(logits), gradient, vocab, mesh)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None, None, None, None


def divided_loss_fn(logits: DTensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in fp32. logits [B, S, FACTS.vocab], targets [B, S]."""
    shares = logits.to_local().flatten(0, 1), targets.flatten()
    return DividedCrossEntropy.apply(*shares, logits.shape[-1], logits.device_mesh, torch.is_grad_enabled())


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add the matmul left @ right to the fp32 `total`; a GPU's matmul adds by itself."""
    if total.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left @ right


class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy in fp32 of hidden [rows, E] @ weight.T, weight [FACTS.vocab, E], LOSS_CHUNKS parts of the rows.

    The forward computes the gradients too, so that the logits of a chunk are freed before those of the next. The
    weight's gradient is accumulated in fp32 and rounded once.
    """

    @staticmethod
    def forward(
        ctx,
        hidden,
        weight,
        targets,
        vocab: Annotated[int, FACTS.divides_vocab],
        mesh: Annotated[DeviceMesh, FACTS.divides_vocab],
        backward: bool,
    ) -> torch.Tensor:
        of_hidden, of_weight = (backward and needed for needed in ctx.needs_input_grad[:2])
        d_hidden = torch.empty_like(hidden) if of_hidden else None
        d_weight = weight.new_zeros(weight.shape, dtype=torch.float32) if of_weight else None
        total = hidden.new_zeros((), dtype=torch.float32)
        size = len(hidden) // LOSS_CHUNKS
        for begin in range(0, len(hidden), size):
            rows = slice(begin, begin + size)
            x = hidden[rows]
            logits = x @ weight.t()
            gradient = logits if of_hidden or of_weight else None
            total += cross_entropy(logits, targets[rows], len(hidden), gradient, vocab, mesh)
            if d_hidden is not None:
                torch.mm(logits, weight, out=d_hidden[rows])
            if d_weight is not None:
                if FACTS.computes_fp32:
                    d_weight.addmm_(logits.t(), x)
                else:
                    add_product(d_weight, logits.t(), x)
            del logits, gradient
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        if d_hidden is not None:
            d_hidden = d_hidden * grad
        if d_weight is not None:
            d_weight = torch.mul(d_weight, grad, out=d_weight.new_empty(d_weight.shape, dtype=ctx.dtype))
        return d_hidden, d_weight, None, *((None, None) if FACTS.divides_vocab else ()), None


def chunked_loss_fn(model: nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in fp32. hidden [B, S, E], the head's input; targets [B, S]."""
    weight = getattr(model, FACTS.head).weight
    rows, labels = hidden.flatten(0, 1), targets.flatten()
    given = (
        (weight.to_local(), labels, weight.shape[0], weight.device_mesh) if FACTS.divides_vocab else (weight, labels)
    )
    return ChunkedCrossEntropy.apply(rows, *given, torch.is_grad_enabled())
