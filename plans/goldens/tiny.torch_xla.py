"""Plan tiny: the layout and training step of llama_tiny in torch on XLA.

Mesh     fsdp 2 x tp 2 = 4 devices, outermost first
Batch    8 x 128 tokens microbatch 4

    mesh = build_mesh()
    model = parallelize(model, mesh)
    optimizer = AdamW(model, mesh)
    step = build_step(model, optimizer, mesh)
    loss, norm = step(tokens, targets, lr)

One process drives all devices of its host. `model` is a plain module with the names of the tables below and
its parameters on the XLA device. Set XLA_NO_SPECIAL_SCALARS=1 before torch_xla is imported: else a learning
rate of 0 or 1 is another program. Written by planc for torch_xla 2.9
from tiny.plan: edit the plan, not this file.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.backends
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor, nn
from torch.func import functional_call

TORCH_XLA = tuple(int(number) for number in torch_xla.__version__.split(".")[:2])
if TORCH_XLA != (2, 9):
    warnings.warn(f"compiled for torch_xla 2.9 and never tried on {torch_xla.__version__}", stacklevel=2)


def P(*axes: Any) -> tuple[Any, ...]:  # noqa: N802
    """The mesh axes that shard each dim of a tensor."""
    return axes


MESH = {"fsdp": 2, "tp": 2}  # outermost first; tiny.plan:5  mesh fsdp 2 > tp 2
DATA_PARALLEL = 2  # ranks that divide the batch; tiny.plan:6  use fsdp over fsdp
MICROBATCH = 8  # sequences on all of them; tiny.plan:3  batch 8 x 128 tokens microbatch 4
BATCH = P("fsdp", None)  # tokens and targets, [sequences, tokens of each]
COMPUTE = torch.float32  # tiny.plan:10  compute fp32 reduce fp32

# One layer's layout by parameter name, [out, in] for a weight; `*` stands for its number.
# Parameters in use.
# tiny.plan:7  use tp over tp
USED = {
    "tok_embeddings.weight": P("tp", None),
    "layers.*.attention_norm.weight": P(None),
    "layers.*.attention.wq.weight": P("tp", None),
    "layers.*.attention.wk.weight": P("tp", None),
    "layers.*.attention.wv.weight": P("tp", None),
    "layers.*.attention.wo.weight": P(None, "tp"),
    "layers.*.ffn_norm.weight": P(None),
    "layers.*.feed_forward.w1.weight": P("tp", None),
    "layers.*.feed_forward.w3.weight": P("tp", None),
    "layers.*.feed_forward.w2.weight": P(None, "tp"),
    "norm.weight": P(None),
    "output.weight": P("tp", None),
}
# Parameters between uses.
# tiny.plan:6  use fsdp over fsdp
PARAMS = {
    "tok_embeddings.weight": P("tp", "fsdp"),
    "layers.*.attention_norm.weight": P("fsdp"),
    "layers.*.attention.wq.weight": P("tp", "fsdp"),
    "layers.*.attention.wk.weight": P("tp", "fsdp"),
    "layers.*.attention.wv.weight": P("tp", "fsdp"),
    "layers.*.attention.wo.weight": P("fsdp", "tp"),
    "layers.*.ffn_norm.weight": P("fsdp"),
    "layers.*.feed_forward.w1.weight": P("tp", "fsdp"),
    "layers.*.feed_forward.w3.weight": P("tp", "fsdp"),
    "layers.*.feed_forward.w2.weight": P("fsdp", "tp"),
    "norm.weight": P("fsdp"),
    "output.weight": P("tp", "fsdp"),
}
# Gradients: summed over the data axes into this layout. As PARAMS.
# tiny.plan:6  use fsdp over fsdp
GRADS = PARAMS
# Optimizer state. As PARAMS.
# tiny.plan:6  use fsdp over fsdp
OPTIMIZER = PARAMS

NOT_DECAYED = {
    "layers.*.attention_norm.weight",
    "layers.*.ffn_norm.weight",
    "norm.weight",
}

# Shardings of module outputs and of their gradients.
# tiny.plan:6  use fsdp over fsdp
# tiny.plan:7  use tp over tp
# tiny.plan:8  use sp over tp
OUTPUTS = {
    "tok_embeddings": P("fsdp", "tp", None),
    "layers.*.attention_norm": P("fsdp", "tp", None),
    "layers.*.attention.wq": P("fsdp", None, "tp"),
    "layers.*.attention.wk": P("fsdp", None, "tp"),
    "layers.*.attention.wv": P("fsdp", None, "tp"),
    "layers.*.attention.core": P("fsdp", None, "tp", None),
    "layers.*.attention.wo": P("fsdp", "tp", None),
    "layers.*": P("fsdp", "tp", None),
    "layers.*.ffn_norm": P("fsdp", "tp", None),
    "layers.*.feed_forward.w1": P("fsdp", None, "tp"),
    "layers.*.feed_forward.w3": P("fsdp", None, "tp"),
    "layers.*.feed_forward.w2": P("fsdp", "tp", None),
    "norm": P("fsdp", "tp", None),
    "output": P("fsdp", None, "tp"),
}


# The following functions are the same for every plan: they read the tables above.


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


def build_loss(model: nn.Module, mesh: xs.Mesh) -> Callable[[Tensor, Tensor], Tensor]:
    """`loss(tokens, targets)`: the mean cross entropy of a microbatch, fp32, with weights cast to COMPUTE."""

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        weights = {
            name: _Placed.apply(p.to(COMPUTE), mesh, USED[_pattern(name)])
            for name, p in model.named_parameters()
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


def _mean_loss(
    compiled: Callable[..., Tensor], tokens: np.ndarray, targets: np.ndarray, mesh: xs.Mesh
) -> Tensor:
    """The mean over the microbatches of `compiled(tokens, targets, total, share)`."""
    rows = list(zip(_rows(tokens, mesh), _rows(targets, mesh), strict=True))
    loss, share = _number(0.0), _number(1 / len(rows))
    for inputs, labels in rows:
        loss = compiled(inputs, labels, loss, share)
    return loss


def _number(value: float) -> Tensor:
    """A number as an input of the program, not as a constant."""
    return torch.tensor(value).to(torch_xla.device())
