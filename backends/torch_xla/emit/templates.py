"""Source templates of an emitted file: equal for all plans, except for the tables that are filled in from a plan."""

DOCSTRING = '''
"""Plan <name>: the layout and training step of <model> in torch on XLA.

Mesh     <mesh>
Batch    <batch>

    mesh = build_mesh()
    model = parallelize(model, mesh)
    optimizer = AdamW(model, mesh)
    step = build_step(model, optimizer, mesh)
    loss, norm = step(tokens, targets, lr)

One process drives all devices of its host. `model` is a plain module with the names of the tables below and
its parameters on the XLA device. Set XLA_NO_SPECIAL_SCALARS=1 before torch_xla is imported: else a learning
rate of 0 or 1 is another program. Written by planc for torch_xla <version>
from <file>: edit the plan, not this file.
"""
'''

IMPORTS = """
from __future__ import annotations

<copy>
<math>
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.backends
<barrier>
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor, nn
from torch.func import functional_call
<silu>
"""

MESH = '''
def build_mesh() -> xs.Mesh:
    """The mesh over all devices; switches on XLA's SPMD partitioner."""
    xr.use_spmd()
    if torch.float32 == COMPUTE:  # fp32 matmuls on every device
        torch_xla.backends.set_mat_mul_precision("highest")
    count = int(np.prod(list(MESH.values())))
    found = xr.global_runtime_device_count()
    assert found == count, f"{found} devices, not {count}"
    return xs.Mesh(np.arange(count), tuple(MESH.values()), tuple(MESH))
'''

ANNOTATIONS = '''
def parallelize(model: nn.Module, mesh: xs.Mesh) -> nn.Module:
    """Annotate the shardings of parameters and of what modules return<taken>; the partitioner does the rest."""
    for name, parameter in model.named_parameters():
        xs.mark_sharding(parameter, mesh, PARAMS[_pattern(name)])
    for name, module in model.named_modules():
        if (spec := OUTPUTS.get(_pattern(name))) is not None:
            module.register_forward_hook(_placed_output(mesh, spec))
        <inputs>
        <experts>
    <replays>
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
    return re.sub(r"^layers\\.\\d+(?=\\.|$)", "layers.*", name)


def _rows(array: np.ndarray, mesh: xs.Mesh) -> list[Tensor]:
    """Token ids [sequences, S] on the devices, one tensor per microbatch."""
    parts = []
    for part in np.split(array, len(array) // MICROBATCH):
        rows = torch.from_numpy(part.astype(np.int64)).to(torch_xla.device())
        xs.mark_sharding(rows, mesh, BATCH)
        parts.append(rows)
    return parts
'''

LOSS = '''
def build_loss(model: nn.Module, mesh: xs.Mesh) -> Callable[[Tensor, Tensor], Tensor]:
    """`loss(tokens, targets)`: the mean cross entropy of a microbatch, fp32, with weights cast to COMPUTE."""

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        weights = {
            name: _Placed.apply(p.to(COMPUTE), mesh, USED[_pattern(name)])
            for name, p in model.named_parameters()
            <not_replayed>
        }
        wide = functional_call(model, weights, (tokens,)).float()
        # A mask works on each shard of the vocab; an index would gather the logits.
        chosen = targets[..., None] == torch.arange(wide.shape[-1], device=wide.device)
        picked = torch.where(chosen, wide, torch.zeros_like(wide)).sum(-1)
        return (wide.logsumexp(-1) - picked).mean()

    return loss
'''

INPUTS = """
if (specs := INPUTS.get(_pattern(name))) is not None:
    module.register_forward_pre_hook(_placed_inputs(mesh, specs))
"""

PLACED_INPUTS = '''
def _placed_inputs(mesh: xs.Mesh, specs: tuple[Any, ...]) -> Callable[..., tuple[Tensor, ...]]:
    """Annotate the shardings of inputs. Those of their gradients are the partitioner's choice."""
    return lambda _module, inputs: tuple(_annotated(x, mesh, s) for x, s in zip(inputs, specs, strict=True))
'''

REPLAYS = """
for number, block in model.layers.items():
    if int(number) % REPLAYED_EVERY == 0:
        block.forward = _replayed(block, f"layers.{number}", mesh)
"""

REPLAY = '''
def _is_replayed(name: str) -> bool:
    """True for a parameter of a recomputed block."""
    found = re.match(r"layers\\.(\\d+)\\.", name)
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
'''

OPTIMIZER = '''
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


def _zeros(params: dict[str, Tensor], mesh: xs.Mesh, specs: dict[str, Any]) -> dict[str, Tensor]:
    """Zeros with their shardings: annotated later, they would stay replicated."""
    made = {name: torch.zeros(p.shape, device=torch_xla.device()) for name, p in params.items()}
    for name, zeros in made.items():
        xs.mark_sharding(zeros, mesh, specs[_pattern(name)])
    return made
'''

STEP = '''
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
'''
