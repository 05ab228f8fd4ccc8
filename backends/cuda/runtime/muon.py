"""Runs Muon for the matrices of the blocks and AdamW for all other parameters, which may be sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from planc.backends.cuda.runtime.shards import local_part
from planc.ir.updates import NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS, NORM_EPS, scale_of

Groups = list[dict[str, Any]]


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon and AdamW in one optimizer. `exp_avg` is AdamW's first moment and Muon's momentum.

    A sharded matrix is all-gathered for its Newton-Schulz iteration, which every rank computes; each rank keeps its own
    shard of the update.
    """

    def __init__(self, matrices: Groups, rest: Groups, *, momentum: float, **adamw: Any) -> None:
        self._momentum = momentum
        self._matrices = matrices
        super().__init__([*matrices, *rest], {"lr": 0.0})
        self._matrices, others = self.param_groups[: len(matrices)], self.param_groups[len(matrices) :]
        self._adamw = torch.optim.AdamW(others, lr=0.0, **adamw)
        self._adamw.state = self.state
        self.param_groups = [*self._matrices, *self._adamw.param_groups]

    @property
    def orthogonalised(self) -> Iterator[Tensor]:
        """The parameters that Muon updates; they have no second moment."""
        return (p for group in self._matrices for p in group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient. `closure` must be None: the loss is known before the step."""
        assert closure is None, "the loss is known before"
        for group in self._matrices:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["weight_decay"])
        self._adamw.step()

    def _update(self, parameter: Tensor, lr: float, decay: float) -> None:
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        grad = parameter.grad
        assert grad is not None
        state["exp_avg"].lerp_(grad, 1 - self._momentum)
        update = grad.lerp(state["exp_avg"], self._momentum)
        whole = update.full_tensor() if isinstance(update, DTensor) else update
        mine = local_part(orthogonal(whole), parameter)
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local.mul_(1 - lr * decay).add_(mine, alpha=-lr)


def orthogonal(matrices: Tensor) -> Tensor:
    """Orthogonalises each of `matrices` [..., rows, columns]: returns about U V^T (its singular vectors), times the
    update scale for its shape, in fp32.

    Newton-Schulz iteration of Jordan and others 2024; see `planc.ir.updates`.
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = (matrices if wide else matrices.mT).float()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + NORM_EPS)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    whole: Tensor = (x if wide else x.mT) * scale_of(*matrices.shape[-2:])
    return whole
