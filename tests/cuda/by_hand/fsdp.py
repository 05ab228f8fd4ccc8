"""By hand: fully sharded data parallelism over four ranks, four microbatches. torch alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


def build_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    fully_shard(model.tok_embeddings, mesh=mesh)
    for block in model.layers.values():
        fully_shard(block, mesh=mesh)
    fully_shard([model.norm, model.output], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    return model


def train_step(
    model: nn.Module, mesh: DeviceMesh, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, labels: torch.Tensor
) -> float:
    optimizer.zero_grad()
    total = torch.zeros(())
    for x, y in zip(tokens.chunk(4), labels.chunk(4), strict=True):
        loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()) / 4
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    dist.all_reduce(total, group=mesh.get_group("dp"))
    return total.item() / 4


def rows(mesh: DeviceMesh) -> tuple[int, int]:
    return mesh.get_local_rank("dp"), 4
