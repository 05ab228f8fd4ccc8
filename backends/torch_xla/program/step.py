"""The layout and the training step of a plan in torch on XLA: shardings are annotated, XLA's partitioner does the rest.

Sorting and indexing rows of experts, as the torch module does, aborts the partitioner of XLA 2.9. A matmul with a mask
is equivalent, and its shapes do not depend on the routing. Dropless: every expert computes every token of its ranks,
with weight 0 for tokens routed elsewhere, so FLOPs are those of all experts. With a capacity, tokens are dispatched to
the plan's number of slots per expert, by a mask [tokens, experts, slots] (GShard, arXiv:2006.16668, section 3.2).
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.backends
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import silu

from planc.backends.torch_xla.program.facts import FACTS
from planc.backends.torch_xla.program.names import (
    BATCH,
    CAPACITY_FACTOR,
    COMPUTE,
    EXPERT_MID,
    EXPERT_ROWS,
    EXPERTS,
    GRADS,
    HIDDEN,
    INPUTS,
    MESH,
    MICROBATCH,
    NOT_DECAYED,
    OPTIMIZER,
    OUTPUTS,
    PARAMS,
    REPLAYED_EVERY,
    TOKEN_RANKS,
    USED,
)


def P(*axes: Any) -> tuple[Any, ...]:  # noqa: N802
    """The mesh axes that shard each dim of a tensor."""
    return axes


def build_mesh() -> xs.Mesh:
    """The mesh over all devices; switches on XLA's SPMD partitioner."""
    xr.use_spmd()
    if torch.float32 == COMPUTE:  # fp32 matmuls on every device
        torch_xla.backends.set_mat_mul_precision("highest")
    count = int(np.prod(list(MESH.values())))
    found = xr.global_runtime_device_count()
    assert found == count, f"{found} devices, not {count}"
    return xs.Mesh(np.arange(count), tuple(MESH.values()), tuple(MESH))


def parallelize(model: nn.Module, mesh: xs.Mesh) -> nn.Module:
    """Annotate the shardings of parameters and of what modules return; the partitioner does the rest."""
    for name, parameter in model.named_parameters():
        xs.mark_sharding(parameter, mesh, PARAMS[_pattern(name)])
    for name, module in model.named_modules():
        if (spec := OUTPUTS.get(_pattern(name))) is not None:
            module.register_forward_hook(_placed_output(mesh, spec))
        if FACTS.takes_inputs and (specs := INPUTS.get(_pattern(name))) is not None:
            module.register_forward_pre_hook(_placed_inputs(mesh, specs))
        if FACTS.experts and _pattern(name) == EXPERTS:
            module.forward = _by_masks(module, mesh)
    if FACTS.replays:
        for number, block in model.layers.items():
            if int(number) % REPLAYED_EVERY == 0:
                block.forward = _replayed(block, f"layers.{number}", mesh)
    return model


def _placed_output(mesh: xs.Mesh, spec: tuple[Any, ...]) -> Callable[..., Tensor]:
    return lambda _module, _inputs, output: _Placed.apply(output, mesh, spec)


class _Placed(torch.autograd.Function):
    """The identity, with the sharding of the spec on the values and their gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: xs.Mesh, spec: tuple[Any, ...]) -> Tensor:
        ctx.place = mesh, spec
        return _annotated(x, mesh, spec)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return _annotated(grads[0], *ctx.place), None, None


def _annotated(x: Tensor, mesh: xs.Mesh, spec: tuple[Any, ...]) -> Tensor:
    made = x.clone()
    xs.annotate_custom_sharding(made, mesh, spec)
    return made


def _pattern(name: str) -> str:
    """`layers.3.norm.weight` -> `layers.*.norm.weight`, the name in the tables."""
    return re.sub(r"^layers\.\d+(?=\.|$)", "layers.*", name)


def _rows(array: np.ndarray, mesh: xs.Mesh) -> list[Tensor]:
    """Token ids [sequences, S] on the devices, one tensor per microbatch."""
    parts = []
    for part in np.split(array, len(array) // MICROBATCH):
        rows = torch.from_numpy(part.astype(np.int64)).to(torch_xla.device())
        xs.mark_sharding(rows, mesh, BATCH)
        parts.append(rows)
    return parts


def _placed_inputs(mesh: xs.Mesh, specs: tuple[Any, ...]) -> Callable[..., tuple[Tensor, ...]]:
    """Annotate the shardings of inputs. Those of their gradients are the partitioner's choice."""
    return lambda _module, inputs: tuple(_annotated(x, mesh, s) for x, s in zip(inputs, specs, strict=True))


def _by_masks(moe: Any, mesh: xs.Mesh) -> Callable[[Tensor], Tensor]:
    """The layer `moe`, [B, S, D] to [B, S, D]."""

    def forward(x: Tensor) -> Tensor:
        shared = moe.shared(x) if moe.shared is not None else None
        weights, chosen = moe.picks(moe.router(x))
        if FACTS.capacity:
            # An expert takes its first tokens of the T of each of G ranks, as many as it has slots; a mask
            # [G, T, X, slots] dispatches and combines them.
            x, weights, chosen = _by_rank(x), _by_rank(weights), _by_rank(chosen)
            experts = moe.experts
            count, tokens, k = moe.router.out_features, *chosen.shape[-2:]
            places = math.ceil(tokens * k * CAPACITY_FACTOR / count)
            picked = chosen[..., None] == torch.arange(count, device=x.device)  # [G, T, k, X]
            weight = (weights[..., None] * picked).sum(-2)
            taken = picked.sum(-2)
            place = taken.cumsum(2) - taken  # number of earlier tokens of the expert
            there = (place[..., None] == torch.arange(places, device=x.device)) & (taken[..., None] > 0)
            mask = there.to(x.dtype)  # [G, T, X, places]
            rows = _Placed.apply(torch.einsum("bstxc,bstd->bsxcd", mask, x), mesh, EXPERT_ROWS)
            each = torch.einsum("bstxc,bstx->bsxc", mask, weight.to(x.dtype))
            gate, up = (torch.einsum("bsxcd,xfd->bsxcf", rows, w.weight) for w in (experts.w1, experts.w3))
            mid = _Placed.apply(silu(gate) * up * each[..., None], mesh, EXPERT_MID)
            made = _Placed.apply(torch.einsum("bsxcf,xdf->bsxcd", mid, experts.w2.weight), mesh, EXPERT_ROWS)
            out = _Placed.apply(_in_sequences(torch.einsum("bstxc,bsxcd->bstd", mask, made)), mesh, HIDDEN)
        else:
            # Each of X experts computes all tokens, most with weight 0.
            numbers = torch.arange(moe.router.out_features, device=x.device)
            weight = (weights[..., None] * (chosen[..., None] == numbers)).sum(-2)  # [B, S, X]
            rows, experts = _Placed.apply(x, mesh, EXPERT_ROWS), moe.experts
            gate, up = (torch.einsum("bsd,xfd->bsxf", rows, w.weight) for w in (experts.w1, experts.w3))
            mid = _Placed.apply(silu(gate) * up * weight[..., None].to(x.dtype), mesh, EXPERT_MID)
            out = _Placed.apply(torch.einsum("bsxf,xdf->bsd", mid, experts.w2.weight), mesh, HIDDEN)
        return out if shared is None else out + shared

    return forward


def _by_rank(x: Tensor) -> Tensor:
    """[B, S, n] to [batch ranks, sequence ranks, local tokens, n]."""
    over_batch, over_sequence = TOKEN_RANKS
    sequences, tokens, n = x.shape
    parts = x.view(over_batch, sequences // over_batch, over_sequence, tokens // over_sequence, n)
    return parts.transpose(1, 2).flatten(2, 3)


def _in_sequences(x: Tensor) -> Tensor:
    """The inverse of `_by_rank`."""
    sequences = MICROBATCH // TOKEN_RANKS[0]
    parts = x.unflatten(2, (sequences, x.shape[2] // sequences)).transpose(1, 2)
    return parts.flatten(2, 3).flatten(0, 1)


def _is_replayed(name: str) -> bool:
    """True for a parameter of a recomputed block."""
    found = re.match(r"layers\.(\d+)\.", name)
    return found is not None and int(found[1]) % REPLAYED_EVERY == 0


def _replayed(block: nn.Module, prefix: str, mesh: xs.Mesh) -> Callable[[Tensor], Tensor]:
    """The forward of `block`. It saves only its input: the backward gathers weights and recomputes."""
    plain = copy.copy(block)  # with the class's own forward
    names = [name for name, _ in block.named_parameters()]

    def run(hidden: Tensor, *params: Tensor) -> Tensor:
        weights = {
            name: _Placed.apply(p.to(COMPUTE), mesh, USED[_pattern(f"{prefix}.{name}")])
            for name, p in zip(names, params, strict=True)
        }
        made: Tensor = functional_call(plain, weights, (hidden,))
        return made

    return lambda hidden: _Replay.apply(run, hidden, *block.parameters())


class _Replay(torch.autograd.Function):
    """`run(*inputs)`; the backward recomputes it.

    Inputs of the recompute pass a barrier: otherwise XLA merges it with the forward and saves the values.
    """

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(*inputs)
        return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        inputs, grad = [x.detach().clone() for x in ctx.saved_tensors], grads[0].clone()
        xm.optimization_barrier_([*inputs, grad])
        inputs = [x.requires_grad_() for x in inputs]
        with torch.enable_grad():
            made = ctx.run(*inputs)
        return None, *torch.autograd.grad(made, inputs, grad)


def build_loss(model: nn.Module, mesh: xs.Mesh) -> Callable[[Tensor, Tensor], Tensor]:
    """`loss(tokens, targets)`: the mean cross entropy of a microbatch, fp32, with weights cast to COMPUTE."""

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        weights = {
            name: _Placed.apply(p.to(COMPUTE), mesh, USED[_pattern(name)])
            for name, p in model.named_parameters()
            if not FACTS.replays or not _is_replayed(name)
        }
        wide = functional_call(model, weights, (tokens,)).float()
        # A mask works on each shard of the vocab; an index would gather the logits.
        chosen = targets[..., None] == torch.arange(wide.shape[-1], device=wide.device)
        picked = torch.where(chosen, wide, torch.zeros_like(wide)).sum(-1)
        return (wide.logsumexp(-1) - picked).mean()

    return loss


class AdamW:
    """AdamW with decoupled weight decay; all state has the shardings of the tables.

    Values that change between steps are 0-D tensors: a Python number would be a constant of the program, and
    compile each step again.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: xs.Mesh,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        self.params = dict(model.named_parameters())
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.steps = torch.zeros((), device=torch_xla.device())
        self.grads = _zeros(self.params, mesh, GRADS)
        self.exp_avg = _zeros(self.params, mesh, OPTIMIZER)
        self.exp_avg_sq = _zeros(self.params, mesh, OPTIMIZER)

    @torch.no_grad()
    def update(self, lr: Tensor, clip_norm: float, fine: Tensor) -> Tensor:
        """Clip and update; returns the norm before. Changes nothing unless `fine` and the norm is finite."""
        norm = torch.stack([g.square().sum() for g in self.grads.values()]).sum().sqrt()
        scale = (clip_norm / (norm + 1e-6)).clamp(max=1.0)
        fine = fine & norm.isfinite()
        steps = self.steps + 1
        first, second = self.betas
        for name, p in self.params.items():
            g = self.grads[name] * scale
            m = first * self.exp_avg[name] + (1 - first) * g
            v = second * self.exp_avg_sq[name] + (1 - second) * g * g
            root = (v / (1 - second**steps)).sqrt() + self.eps
            decay = 0.0 if _pattern(name) in NOT_DECAYED else self.weight_decay
            moved = p - lr * (m / (1 - first**steps) / root + decay * p)
            for old, new in ((p, moved), (self.exp_avg[name], m), (self.exp_avg_sq[name], v)):
                old.copy_(torch.where(fine, new, old))
        self.steps.copy_(torch.where(fine, steps, self.steps))
        return norm


def _zeros(params: dict[str, nn.Parameter], mesh: xs.Mesh, specs: dict[str, Any]) -> dict[str, Tensor]:
    """Zeros with their shardings: annotated later, they would stay replicated."""
    made = {name: torch.zeros(p.shape, device=torch_xla.device()) for name, p in params.items()}
    for name, zeros in made.items():
        xs.mark_sharding(zeros, mesh, specs[_pattern(name)])
    return made


def build_step(
    model: nn.Module, optimizer: AdamW, mesh: xs.Mesh, clip_norm: float = 1.0
) -> Callable[[np.ndarray, np.ndarray, float], Tensor]:
    """`step(tokens, targets, lr)` on the global batch, int32 [sequences, S]: loss and gradient norm, [2].

    Two programs: one for every microbatch, which adds to the gradients, and one for the update.
    """
    loss_of = build_loss(model, mesh)

    def micro(tokens: Tensor, targets: Tensor, total: Tensor, share: Tensor) -> Tensor:
        loss = loss_of(tokens, targets) * share
        # On this thread: tensors that another thread still holds when the call ends would be outputs too.
        with torch.autograd.set_multithreading_enabled(False):
            found = torch.autograd.grad(loss, list(optimizer.params.values()))
        begins = total == 0  # in the first microbatch, which overwrites the last step's gradients
        with torch.no_grad():
            for kept, grad in zip(optimizer.grads.values(), found, strict=True):
                kept.copy_(torch.where(begins, grad, kept + grad))
        return total + loss.detach()

    def update(lr: Tensor, loss: Tensor) -> Tensor:
        return torch.stack((loss, optimizer.update(lr, clip_norm, loss.isfinite())))

    compiled = torch_xla.compile(micro, full_graph=True)
    updated = torch_xla.compile(update, full_graph=True)

    def step(tokens: np.ndarray, targets: np.ndarray, lr: float) -> Tensor:
        return updated(_number(lr), _mean_loss(compiled, tokens, targets, mesh))

    return step


def build_evaluate(model: nn.Module, mesh: xs.Mesh) -> Callable[[np.ndarray, np.ndarray], Tensor]:
    """`evaluate(tokens, targets)`: the mean loss of a global batch, 0-D, on the device."""
    loss_of = build_loss(model, mesh)

    def micro(tokens: Tensor, targets: Tensor, total: Tensor, share: Tensor) -> Tensor:
        with torch.no_grad():
            return total + loss_of(tokens, targets) * share

    compiled = torch_xla.compile(micro, full_graph=True)

    def evaluate(tokens: np.ndarray, targets: np.ndarray) -> Tensor:
        return _mean_loss(compiled, tokens, targets, mesh)

    return evaluate


def _mean_loss(compiled: Callable[..., Tensor], tokens: np.ndarray, targets: np.ndarray, mesh: xs.Mesh) -> Tensor:
    """The mean over the microbatches of `compiled(tokens, targets, total, share)`."""
    rows = list(zip(_rows(tokens, mesh), _rows(targets, mesh), strict=True))
    loss, share = _number(0.0), _number(1 / len(rows))
    for inputs, labels in rows:
        loss = compiled(inputs, labels, loss, share)
    return loss


def _number(value: float) -> Tensor:
    """A number as an input of the program, not as a constant."""
    return torch.tensor(value).to(torch_xla.device())
