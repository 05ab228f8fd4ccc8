"""By hand: a pipeline of two stages under 1F1B, each fully sharded over two ranks. torch alone."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICROBATCHES = 2


def build_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    rank, half = mesh.get_local_rank("pp"), len(model.layers) // 2
    stage = copy.deepcopy(model)
    for name in list(stage.layers):
        if int(name) // half != rank:
            del stage.layers[name]
    if rank == 0:
        stage.norm = stage.output = None
        fully_shard(stage.tok_embeddings, mesh=mesh["dp"], reshard_after_forward=False)
    for block in stage.layers.values():
        fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
    if rank == 1:
        stage.tok_embeddings = None
        fully_shard([stage.norm, stage.output], mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(stage, mesh=mesh["dp"], reshard_after_forward=False)
    return stage


def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build_schedule(stage: nn.Module, mesh: DeviceMesh) -> Schedule1F1B:
    pipeline = PipelineStage(stage, mesh.get_local_rank("pp"), 2, torch.device("cpu"), group=mesh.get_group("pp"))
    return Schedule1F1B(pipeline, n_microbatches=MICROBATCHES, loss_fn=loss_fn)


def train_step(
    schedule: Schedule1F1B,
    stage: nn.Module,
    mesh: DeviceMesh,
    optimizer: torch.optim.Optimizer,
    tokens: torch.Tensor,
    labels: torch.Tensor,
) -> float:
    optimizer.zero_grad()
    total, losses = torch.zeros(()), []
    if mesh.get_local_rank("pp") == 0:
        schedule.step(tokens, return_outputs=False)
    else:
        schedule.step(target=labels, losses=losses, return_outputs=False)
        total += torch.stack(losses).detach().mean()
    norm = nn.utils.get_total_norm([p.grad for p in stage.parameters()]).full_tensor() ** 2
    dist.all_reduce(norm, group=mesh.get_group("pp"))
    nn.utils.clip_grads_with_norm_(stage.parameters(), 1.0, norm**0.5)
    optimizer.step()
    dist.all_reduce(total, group=mesh.get_group("pp"))
    dist.all_reduce(total, group=mesh.get_group("dp"))
    return total.item() / 2


def rows(mesh: DeviceMesh) -> tuple[int, int]:
    return mesh.get_local_rank("dp"), 2
