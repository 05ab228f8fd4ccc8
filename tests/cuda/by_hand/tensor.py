"""By hand: tensor and sequence parallelism with a divided loss, inside fully sharded data parallelism. torch alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

MICROBATCHES = 2


def build_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    ends = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh["tp"], ends, src_data_rank=None)
    for block in model.layers.values():
        inside = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh["tp"], inside, src_data_rank=None)
    fully_shard(model.tok_embeddings, mesh=mesh["dp"])
    for block in model.layers.values():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard([model.norm, model.output], mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(model, mesh=mesh["dp"])
    return model


def train_step(
    model: nn.Module, mesh: DeviceMesh, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, labels: torch.Tensor
) -> float:
    optimizer.zero_grad()
    total = torch.zeros(())
    for x, y in zip(tokens.chunk(MICROBATCHES), labels.chunk(MICROBATCHES), strict=True):
        with loss_parallel():
            loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()) / MICROBATCHES
            loss.backward()
        total += loss.detach().full_tensor()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    dist.all_reduce(total, group=mesh.get_group("dp"))
    return total.item() / 2


def rows(mesh: DeviceMesh) -> tuple[int, int]:
    return mesh.get_local_rank("dp"), 2
