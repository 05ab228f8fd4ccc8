"""torchtitan's own Llama and its own layout, as its trainer sets them up: its release 0.2.2."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planc.ir.plan import Plan


def model_of(plan: Plan, device: torch.device) -> tuple[Any, Any, Any]:
    """torchtitan's model of the sizes of `plan`, divided over all ranks and filled on `device`; its dimensions, and its
    optimizers. Loads torchtitan."""
    from torchtitan.components.optimizer import build_optimizers  # type: ignore[import-not-found]
    from torchtitan.config import JobConfig  # type: ignore[import-not-found]
    from torchtitan.distributed import ParallelDims  # type: ignore[import-not-found]
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs  # type: ignore[import-not-found]
    from torchtitan.models.llama3.infra.parallelize import parallelize_llama  # type: ignore[import-not-found]

    sizes, dtype = plan.model.sizes, {"fp32": "float32", "bf16": "bfloat16"}[plan.precision.compute]
    config = JobConfig()
    config.training.seq_len = plan.batch.sequence_tokens
    config.training.mixed_precision_param, config.training.mixed_precision_reduce = dtype, "float32"
    config.activation_checkpoint.mode = "none"
    config.compile.enable, config.compile.components = bool(plan.compiles), ["model"]
    config.optimizer.implementation = "fused"
    width = 2 * 4 * sizes["embed"] // 3  # which torchtitan multiplies, and rounds up
    arguments = TransformerModelArgs(
        dim=sizes["embed"],
        n_layers=plan.model.layers,
        n_heads=sizes["heads"],
        n_kv_heads=sizes["kv_heads"],
        vocab_size=sizes["vocab"],
        multiple_of=1,
        ffn_dim_multiplier=(sizes["ffn"] + 0.5) / width,
        rope_theta=plan.model.rope_theta,
        max_seq_len=plan.batch.sequence_tokens,
    )
    ranks = dist.get_world_size()
    dims = ParallelDims(dp_replicate=1, dp_shard=ranks, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=ranks)
    dims.build_mesh()
    with torch.device("meta"):
        model = Transformer(arguments)
    model = parallelize_llama(model, dims, config)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    return model, dims, build_optimizers([model], config.optimizer, dims)


def train_step(
    model: Any, dims: Any, optimizers: Any, compute: torch.dtype, tokens: Tensor, labels: Tensor, microbatch: int
) -> float:
    """One optimizer step as torchtitan's trainer takes it; the mean loss (nats) over all ranks.

    Args:
        model: torchtitan's, divided.
        dims: its dimensions of parallelism.
        optimizers: its container of them.
        compute: the dtype of one rank's autocast; several ranks have it from FSDP.
        tokens: this rank's token ids, [sequences, tokens] int64.
        labels: the token that follows each, of the same shape.
        microbatch: sequences of one forward.
    """
    from torchtitan.components.loss import cross_entropy_loss  # type: ignore[import-not-found]
    from torchtitan.distributed.utils import clip_grad_norm_  # type: ignore[import-not-found]

    optimizers.zero_grad()
    every = float(labels.numel() * dist.get_world_size())
    total = torch.zeros((), device=tokens.device)
    alone = dist.get_world_size() == 1 and compute != torch.float32
    for x, y in zip(torch.split(tokens, microbatch), torch.split(labels, microbatch), strict=True):
        with torch.autocast(tokens.device.type, dtype=compute, enabled=alone):
            predicted = model(x)
            loss = cross_entropy_loss(predicted, y) / every
        del predicted
        loss.backward()
        total += loss.detach()
    clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
    optimizers.step()
    dist.all_reduce(total)
    return float(total)
