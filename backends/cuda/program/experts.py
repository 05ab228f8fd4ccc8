"""Experts of MoE layers: rows are sent to the ranks of their experts, computed there, and sent back."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from planc.backends.cuda.program.facts import FACTS


def expert_modules(model: nn.Module) -> list[nn.Module]:
    """The experts module of each MoE block."""
    return [module for path, module in model.named_modules() if path.endswith(FACTS.experts)]


def sizes(counts: torch.Tensor) -> list:
    """Row counts as Python ints, to allocate buffers. This synchronises with the device."""
    return counts.tolist()


class UnsortedRows(torch.autograd.Function):
    """Scatters `rows` back to the `total` places that they were taken from in this `order`.

    Its backward saves no tensor that a recompute of the forward would have to produce.
    """

    @staticmethod
    def forward(ctx, rows: torch.Tensor, order: torch.Tensor, total: int) -> torch.Tensor:
        ctx.order = order
        return rows.new_zeros(total, *rows.shape[1:]).index_copy_(0, order, rows)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad[ctx.order], None, None


class Taken(torch.autograd.Function):
    """`rows[places]`. Its backward saves no tensor that a recompute of the forward would have to produce."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.places, ctx.total = places, len(rows)
        return rows[places]

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.new_zeros(ctx.total, *grad.shape[1:]).index_copy_(0, ctx.places, grad), None


class ExpertParallel:
    """Dispatches rows to their experts and combines the results.

    FACTS.dispatch

    Hooks around a module that takes rows [R, D] sorted by expert, the router weight of each row [R], and
    the number of rows of each expert, and returns rows [R, D].
    """

    def __init__(self, module: nn.Module, mesh: Annotated[DeviceMesh, FACTS.own_expert_axes]) -> None:
        if FACTS.exchange:
            self.group = mesh.get_group(FACTS.exchange)
        if FACTS.sharing:
            self.sharing = mesh[FACTS.sharing]
        module.register_forward_pre_hook(self.dispatch)
        module.register_forward_hook(self.combine)

    def dispatch(self, module: nn.Module, inputs: tuple) -> tuple:
        """Send the rows of local tokens to the ranks of their experts."""
        rows, weights, counts = inputs
        if FACTS.capacity:
            # Each expert has this many slots for the tokens of a rank; its first rows take them.
            self.places = math.ceil(len(rows) * FACTS.slots_factor / len(counts))
            expert = torch.arange(len(counts), device=rows.device).repeat_interleave(counts, output_size=len(rows))
            place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[expert]
            total = len(counts) * self.places
            # A dropped row goes to an extra last slot, which is cut off.
            self.taken = torch.where(place < self.places, expert * self.places + place, total)
            rows, weights = (
                t.new_zeros(total + 1, *t.shape[1:]).index_copy(0, self.taken, t)[:-1] for t in (rows, weights)
            )
        if FACTS.exchange and FACTS.capacity:
            rows, weights = (fc.all_to_all_single_autograd(t, None, None, self.group) for t in (rows, weights))
        elif FACTS.exchange:
            # Number of rows that each rank sends to each local expert.
            arrived = torch.empty_like(counts)
            dist.all_to_all_single(arrived, counts, group=self.group)
            arrived, counts = (c.view(self.group.size(), -1) for c in (arrived, counts))
            here, sent = sizes(torch.stack((arrived, counts)))
            self.received, self.sent = [sum(rows) for rows in here], [sum(rows) for rows in sent]
            # Send each row and its router weight to the rank that holds its expert.
            rows, weights = (
                fc.all_to_all_single_autograd(t, self.received, self.sent, self.group) for t in (rows, weights)
            )
        elif FACTS.gathers_rows and not FACTS.capacity:
            arrived = counts[None]
        if FACTS.gathers_rows and not FACTS.capacity:
            # Tensor-parallel ranks of an expert have different rows, padded to the longest for the all-gather.
            every = arrived.new_empty(self.sharing.size() * len(arrived), arrived.shape[1])
            dist.all_gather_single(every, arrived, group=self.sharing.get_group())
            every = every.unflatten(0, (-1, len(arrived)))
            shared = sizes(every)
            lengths = [sum(map(sum, parts)) for parts in shared]
            here, self.length = [rows for parts in shared for rows in parts], len(rows)
            empty = max(lengths) - len(rows)
            rows, weights = F.pad(rows, (0, 0, 0, empty)), F.pad(weights, (0, empty))
        if FACTS.gathers_rows:
            rows, weights = (
                DTensor.from_local(t, self.sharing, [Shard(0)], run_check=False)
                .redistribute(placements=[Replicate()])
                .to_local(grad_placements=[Partial()])
                for t in (rows, weights)
            )
        elif FACTS.sharing:
            # Tensor-parallel ranks of an expert have the same rows, whose gradients are partial sums over these ranks.
            rows, weights = (
                DTensor.from_local(t, self.sharing, [Replicate()], run_check=False).to_local(
                    grad_placements=[Partial()]
                )
                for t in (rows, weights)
            )
        if FACTS.capacity:
            if FACTS.senders > 1:
                # [senders, local experts, slots] to [local experts, senders, slots].
                rows, weights = (
                    t.unflatten(0, (FACTS.senders, -1, self.places)).transpose(0, 1).flatten(0, 2)
                    for t in (rows, weights)
                )
            slots = FACTS.senders * self.places if FACTS.senders > 1 else self.places
            return rows, weights, [slots] * (len(counts) // FACTS.holders if FACTS.holders > 1 else len(counts))
        if not FACTS.exchange and not FACTS.gathers_rows:
            return rows, weights, counts
        if FACTS.gathers_rows:
            # Sort by expert over all ranks. Padding sorts last and is cut off.
            expert = torch.arange(arrived.shape[1], device=rows.device).repeat(len(arrived))
            placed = [
                F.pad(
                    expert.repeat_interleave(counted.flatten(), output_size=n), (0, max(lengths) - n), value=len(expert)
                )
                for counted, n in zip(every, lengths, strict=True)
            ]
            self.total = len(rows)
            self.order = torch.cat(placed).argsort(stable=True)[: sum(lengths)]
        else:
            # Reorder from sender-major to expert-major.
            expert = torch.arange(arrived.shape[1], device=rows.device).repeat(len(here))
            self.total = len(rows)
            self.order = expert.repeat_interleave(arrived.flatten(), output_size=self.total).argsort(stable=True)
        rows, weights = rows[self.order], weights[self.order]
        return rows, weights, [sum(rows) for rows in zip(*here, strict=True)]

    def combine(self, module: nn.Module, inputs: tuple, rows: torch.Tensor) -> torch.Tensor:
        """Send the experts' outputs back to the ranks of the tokens."""
        if FACTS.capacity and FACTS.senders > 1:
            rows = rows.unflatten(0, (-1, FACTS.senders, self.places)).transpose(0, 1).flatten(0, 2)
        if not FACTS.capacity and (FACTS.exchange or FACTS.gathers_rows):
            rows = UnsortedRows.apply(rows, self.order, self.total)
        if FACTS.sharing:
            placed = DTensor.from_local(rows, self.sharing, [Partial()], run_check=False)
        if FACTS.sharing and not FACTS.capacity and not FACTS.exchange and not FACTS.gathers_rows:
            return placed.redistribute(placements=[Replicate()]).to_local()
        if FACTS.sharing:
            rows = placed.redistribute(placements=[Shard(0) if FACTS.gathers_rows else Replicate()]).to_local()
        if FACTS.capacity:
            if FACTS.exchange:
                rows = fc.all_to_all_single_autograd(rows, None, None, self.group)
            return Taken.apply(F.pad(rows, (0, 0, 0, 1)), self.taken)
        mine = rows[: self.length] if FACTS.gathers_rows else rows
        if FACTS.exchange:
            return fc.all_to_all_single_autograd(mine, self.sent, self.received, self.group)
        return mine
