"""Runs the unsharded model in one process on plain torch. The emitted program is compared with its results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from planc.backends.common.sequence_order import held_order
from planc.backends.cuda.models.balance import counted
from planc.backends.cuda.models.moe import picks
from planc.costing.compute.quantize import quantized
from planc.ir.plan import Plan, Quantize

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class SingleStep:
    """Runs forward and backward of a global batch, one microbatch at a time, and leaves the gradients in .grad."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        self.sequences = plan.batch.microbatch_sequences
        self.dtype, self.stored = DTYPES[plan.precision.compute], DTYPES[plan.store_dtype("params")]
        self.rounds = reductions(plan)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(self.stored)
        if plan.route.method == "capacity":
            limit_rows(model, plan)
        for sentence in plan.quantize:
            multiply_narrow(model, plan, sentence)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss (nats) of `tokens` against `targets`, both [sequences, sequence_tokens], and leaves its
        gradients in the module."""
        if self.stored != torch.float32:
            return self._step_in_rounds(tokens, targets)
        total = torch.zeros((), device=tokens.device)
        for share, inputs, labels in self._microbatches(tokens, targets):
            loss = self._loss(inputs, labels) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _step_in_rounds(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Runs a step whose gradients are stored in a low-precision dtype, and returns its loss. Each gradient that a
        program would reduce at once is rounded to this dtype, and the rounded gradients are accumulated in it."""
        total = torch.zeros((), device=tokens.device)
        microbatches = self._microbatches(tokens, targets)
        for at in range(self.rounds):
            trained = {n: p.requires_grad for n, p in self.model.named_parameters()}
            held = {n: p.detach().to(self.dtype) for n, p in self.model.named_parameters()}
            wide = {n: p.requires_grad_(trained[n]) for n, p in held.items()}
            for share, inputs, labels in microbatches[at :: self.rounds]:  # one of each rank, or all of them
                loss = self._loss(inputs, labels, wide) * share
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            for name, parameter in self.model.named_parameters():
                if not parameter.requires_grad:
                    continue
                made = wide[name].grad
                assert made is not None, name
                parameter.grad = made.to(self.stored) + (0 if parameter.grad is None else parameter.grad)
        return total

    @torch.no_grad()
    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss (nats) of `tokens` against `targets`, both [sequences, sequence_tokens]."""
        total = torch.zeros((), device=tokens.device)
        for share, inputs, labels in self._microbatches(tokens, targets):
            total += self._loss(inputs, labels) * share
        return total

    def clip(self, max_norm: float) -> Tensor:
        """Scales the gradients to a global norm of at most `max_norm`, and returns the norm before."""
        gradients = [p.grad.float() for p in self.model.parameters() if p.grad is not None]
        norm: Tensor = nn.utils.get_total_norm(gradients)
        nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, norm)
        return norm

    def _microbatches(self, tokens: Tensor, targets: Tensor) -> list[tuple[float, Tensor, Tensor]]:
        pairs = zip(torch.split(tokens, self.sequences), torch.split(targets, self.sequences), strict=True)
        return [(len(inputs) / len(tokens), inputs, labels) for inputs, labels in pairs]

    def _loss(self, tokens: Tensor, targets: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        """Returns the mean cross entropy in fp32 with these `weights`; None: the model's, in the compute dtype."""
        weights = weights or {name: p.to(self.dtype) for name, p in self.model.named_parameters()}
        logits = functional_call(self.model, weights, (tokens,))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def reductions(plan: Plan) -> int:
    """Returns the number of times that a step of `plan` reduces a gradient: once per microbatch if gradients are
    sharded over all data axes and there is no pipeline, else once."""
    each = plan.split is None and set(plan.data_axes) <= set(plan.store("grads"))
    return plan.microbatches if each and plan.store("grads") else 1


def multiply_narrow(model: nn.Module, plan: Plan, sentence: Quantize) -> None:
    """Converts the linear layers of `model` that the `quantize` sentence names to float8."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # type: ignore[import-untyped]

    ops = [op for section in plan.model.ops.values() for op in section if quantized(plan, op) is sentence]
    wide = {str(n) for begin, end in sentence.kept_layers for n in range(begin, end)}
    narrow = {op.module for op in ops}

    def chosen(module: nn.Module, path: str) -> bool:
        number = path.split(".")[1] if path.startswith("layers.") else ""
        return number not in wide and path.replace(f"layers.{number}.", "layers.*.") in narrow

    config = Float8LinearConfig.from_recipe_name(sentence.recipe or "tensorwise")
    convert_to_float8_training(model, module_filter_fn=chosen, config=config)


def limit_rows(model: nn.Module, plan: Plan) -> None:
    """Makes `model` drop the tokens beyond an expert's capacity in `plan`, per rank and microbatch."""
    ops = [op for section in plan.model.ops.values() for op in section]
    route = next(op.module.removeprefix("layers.*.") for op in ops if op.kind == "route")
    expert = next(op.module.removeprefix("layers.*.").rpartition(".")[0] for op in ops if "experts" in op.module)
    shares = plan.mesh.size(*plan.axes_of("sequence", "residual"))
    for path, module in list(model.named_modules()):
        if path.endswith(f".{route}"):
            in_shares = partial(_in_shares, module, module.forward, shares, torch.tensor(held_order(plan)))
            module.forward = in_shares
        if path.endswith(f".{expert}"):
            module.register_forward_pre_hook(partial(_weighed, plan.route.factor))


def _in_shares(module: Any, forward: Callable[[Tensor], Tensor], shares: int, order: Tensor, x: Tensor) -> Tensor:
    """Runs the MoE `module` on hidden states `x` [B, S, D] in `shares` parts, each with the tokens of one rank in that
    rank's order. The balancing loss still counts full sequences."""
    held = x[:, order]
    if module.balance is not None:  # of `planc.backends.cuda.models.moe.MoE`
        with torch.no_grad():
            logits = module.router(x).flatten(0, 1).float()
            chosen = picks(logits, module.top_k, module.routing)[1]
        module.balance.total = partial(_same, counted(logits, chosen, len(x)))
    return torch.cat([forward(part) for part in held.chunk(shares, dim=1)], dim=1)[:, order.argsort()]


def _same(counts: Tensor, _part: Tensor) -> Tensor:
    return counts


def _weighed(factor: float, module: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the experts' inputs, with router weight 0 for the rows beyond an expert's capacity."""
    rows, weights, counts = inputs
    places = ceil(len(rows) * factor / len(counts))
    kept = torch.cat([torch.arange(n, device=rows.device) < places for n in counts.tolist()])
    return rows, weights * kept, counts
