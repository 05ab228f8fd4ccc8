"""Fully sharded data parallelism as an engineer writes it with torch alone, in the manner of torchtitan.

Blocks are compiled one by one, each is a group of FSDP with the last layers kept gathered, gradients are reduced with
every microbatch, and the optimizer is torch's. The emitted program of the same plan is held beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel


def parallelize(model: nn.Module, mesh: DeviceMesh, *, compiled: bool, compute: torch.dtype) -> nn.Module:
    """Compile the blocks of `model` if `compiled`, and shard its state over `mesh`; forward and backward are in
    `compute`, gradients are reduced in fp32."""
    layers = model.get_submodule("layers")
    if compiled:
        for name, block in list(layers.named_children()):
            layers.register_module(name, torch.compile(block, backend="inductor", fullgraph=True))  # type: ignore[arg-type]
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    fully_shard(model.get_submodule("tok_embeddings"), mesh=mesh, mp_policy=policy)
    for block in layers.children():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    ends = [model.get_submodule("norm"), model.get_submodule("output")]
    fully_shard(ends, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def data_mesh(device: torch.device) -> DeviceMesh:
    """All ranks in one dimension, on devices like `device`."""
    return init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))


@contextmanager
def flash(wanted: bool) -> Iterator[None]:
    """Within, attention runs on the flash kernel if that is `wanted`."""
    if not wanted:
        yield
        return
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield


def train_step(
    model: nn.Module,
    mesh: DeviceMesh,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    labels: Tensor,
    microbatch: int,
) -> float:
    """One optimizer step on this rank's rows; the mean loss (nats) over all ranks.

    Args:
        model: the divided model.
        mesh: the mesh of its data ranks.
        optimizer: of its parameters.
        tokens: token ids, [sequences, tokens] int64.
        labels: the token that follows each, of the same shape.
        microbatch: sequences of one forward.
    """
    optimizer.zero_grad()
    inputs, targets = torch.split(tokens, microbatch), torch.split(labels, microbatch)
    total = torch.zeros((), device=tokens.device)
    for x, y in zip(inputs, targets, strict=True):
        loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()) / len(inputs)
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    dist.all_reduce(total, group=mesh.get_group("dp"))
    return total.item() / dist.get_world_size()
