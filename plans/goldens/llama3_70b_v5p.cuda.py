"""llama3_70b_v5p: llama3_70b over 256 devices.

plan     llama3_70b_v5p (sha256 b18476a779db4613)
mesh     fsdp 64 > tp 4
cluster  1 x tpu_v5p

Compiled by planc for torch 2.13; change the plan rather than this file. Start one process per
device, initialise torch.distributed, then:

    mesh = build_mesh()
    model = parallelize(model, mesh)  # built on torch.device("meta"); then to_empty and fill it
    step = build_step(model, mesh)
    loss = step(tokens, targets)  # this data rank's part of the batch; gradients are in .grad
    norm = clip_grad_norm(model, mesh, 1.0)
"""

import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])
if TORCH < (2, 11):
    raise RuntimeError(f"torch {torch.__version__} is too old: on 2.9 tensor parallelism had wrong gradients")
if TORCH > (2, 15):
    warnings.warn(f"compiled for torch 2.13 and never tried on {torch.__version__}", stacklevel=2)

# llama3_70b_v5p.plan:5  mesh fsdp 64 > tp 4
MESH = {"fsdp": 64, "tp": 4}
# llama3_70b_v5p.plan:3  batch 256 x 8192 tokens microbatch 4
MICROBATCH_SEQUENCES = 4
# llama3_70b_v5p.plan:6  use fsdp over fsdp
DATA_AXES = ("fsdp",)

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def build_mesh(device_type: str | None = None) -> DeviceMesh:
    """The mesh over all ranks, outermost axis first. torch.distributed must be initialised."""
    device_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))


class RowsOfRank(torch.autograd.Function):
    """Rows of a weight [V / ranks, E] at `index`, 0 where not `mine`. Tokens that are `learned` add to the gradient,
    which has the rank's own rows alone."""

    @staticmethod
    def forward(ctx, weight, index, mine, learned) -> torch.Tensor:
        ctx.rows = len(weight)
        ctx.save_for_backward(index.where(learned, ctx.rows))
        return F.embedding(index.where(mine, 0), weight).masked_fill_(~mine[..., None], 0)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        # The last row stands for all other tokens: nothing is added to it.
        added = torch.ops.aten.embedding_dense_backward(grad, index, ctx.rows + 1, ctx.rows, False)
        return added[:-1], None, None, None


class VocabParallelEmbedding(ParallelStyle):
    """Shards an embedding over the vocabulary; each rank looks up the tokens whose rows it has, and the ranks add up.

    torch's row parallel style would make the gradient of every row on each rank.
    """

    def __init__(self, *, output_layouts: Placement) -> None:
        super().__init__()
        self.returned = output_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        part = distribute_tensor(module.weight, device_mesh, [Shard(0)], src_data_rank=self.src_data_rank)
        module.register_parameter("weight", nn.Parameter(part, requires_grad=module.weight.requires_grad))
        module.forward = partial(self._look_up, module, device_mesh)
        return module

    def _look_up(self, module: nn.Module, mesh: DeviceMesh, tokens: torch.Tensor) -> torch.Tensor:
        weight = module.weight.to_local()
        index = tokens - mesh.get_local_rank() * -(-len(module.weight) // mesh.size())
        mine = (index >= 0) & (index < len(weight))
        learned = mine if module.padding_idx is None else mine & (tokens != module.padding_idx)
        rows = RowsOfRank.apply(weight, index, mine, learned)
        placed = DTensor.from_local(rows, mesh, [Partial()], run_check=False)
        return placed.redistribute(placements=[self.returned]).to_local()


def apply_tp(model: nn.Module, mesh: DeviceMesh) -> None:
    """Apply tensor parallelism over the tensor axis; the styles issue the collectives.

    src_data_rank=None: each rank takes its shard from its own copy; by default rank 0 would scatter.
    """
    tp = mesh["tp"]
    # llama3_70b_v5p.plan:8  use sp over tp
    top = {
        # reduce-scatter of sequence over tp
        "tok_embeddings": VocabParallelEmbedding(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        # all-gather of sequence over tp
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, tp, top, src_data_rank=None)
    # llama3_70b_v5p.plan:8  use sp over tp
    # llama3_70b_v5p.plan:7  use tp over tp
    inside = {
        "attention_norm": SequenceParallel(),
        # all-gather of sequence over tp
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),  # reduce-scatter of sequence over tp
        "ffn_norm": SequenceParallel(),
        # all-gather of sequence over tp
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),  # reduce-scatter of sequence over tp
    }
    for block in model.layers.values():
        parallelize_module(block, tp, inside, src_data_rank=None)


def apply_recompute(model: nn.Module) -> None:
    """Keep the inputs of each block only, and run its forward again in the backward."""
    # llama3_70b_v5p.plan:11  recompute blocks
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    # Not `checkpoint_wrapper`: it would add a module to every path.
    for block in model.layers.values():
        block.forward = partial(again, block.forward)


def apply_fsdp(model: nn.Module, mesh: DeviceMesh) -> None:
    """Store state over the data ranks, one group per block."""
    # llama3_70b_v5p.plan:10  compute bf16 reduce fp32
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    # llama3_70b_v5p.plan:6  use fsdp over fsdp
    # all-gather in each forward and again in each backward
    config = {"mesh": mesh["fsdp"], "mp_policy": policy, "reshard_after_forward": True}
    fully_shard(model.tok_embeddings, **config)
    for block in model.layers.values():
        fully_shard(block, **config)
    # The backward starts with these, so they stay gathered.
    fully_shard([model.norm, model.output], **(config | {"reshard_after_forward": False}))
    fully_shard(model, **config)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Parallelize `model` in place. The order matters: each function wraps the result of those before it."""
    apply_tp(model, mesh)
    apply_recompute(model)
    apply_fsdp(model, mesh)
    return model


def cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    count: int,
    gradient: torch.Tensor | None,
    vocab: int,
    mesh: DeviceMesh,
) -> torch.Tensor:
    """The sum of the cross entropies in fp32 of logits [rows, V / tp], over `count`.

    Its gradient is written to `gradient`, which may be the logits, unless None. `vocab` is V; `mesh` has the ranks
    that divide it.
    """
    # llama3_70b_v5p.plan:7  use tp over tp: all-reduces of the maximum, the sum and the target's logit over
    #   the sharded vocab
    group = mesh.get_group()
    most = logits.amax(dim=-1, keepdim=True).float()
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    scores = logits - most
    own = targets[:, None] - mesh.get_local_rank() * -(-vocab // mesh.size())
    mine = (own >= 0) & (own < scores.shape[1])
    own = own.where(mine, 0)
    picked = scores.gather(1, own) * mine
    sums = scores.exp_().sum(dim=-1, keepdim=True)
    dist.all_reduce(picked, group=group)
    dist.all_reduce(sums, group=group)
    if gradient is not None:
        torch.div(scores.scatter_add_(1, own, -sums * mine), sums * count, out=gradient)
    return (sums.log() - picked).sum() / count


class DividedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy in fp32 of logits [rows, V / tp], a share of the vocabulary on each rank.

    The forward computes the gradient too, so that nothing in fp32 is saved.
    """

    @staticmethod
    def forward(ctx, logits, targets, vocab: int, mesh: DeviceMesh, backward: bool) -> torch.Tensor:
        gradient = torch.empty_like(logits) if backward else None
        ctx.save_for_backward(gradient)
        return cross_entropy(logits, targets, len(logits), gradient, vocab, mesh)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None, None, None, None


def loss_fn(logits: DTensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in fp32. logits [B, S, V / tp], targets [B, S]."""
    shares = logits.to_local().flatten(0, 1), targets.flatten()
    return DividedCrossEntropy.apply(*shares, logits.shape[-1], logits.device_mesh, torch.is_grad_enabled())


def build_step(model: nn.Module, mesh: DeviceMesh) -> Step:
    """step(tokens, targets) -> loss: one forward and backward; leaves the gradients in .grad.

    Both arguments are this data rank's [sequences, S] int64. The loss is the mean over the global batch.
    """

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        inputs = tokens.split(MICROBATCH_SEQUENCES)
        labels = targets.split(MICROBATCH_SEQUENCES)
        total = torch.zeros((), device=tokens.device)
        for index in range(len(inputs)):
            loss = loss_fn(model(inputs[index]), labels[index]) / len(inputs)
            loss.backward()
            total += loss.detach()
        return mean_over_batch(total, mesh)

    return step


def build_evaluate(model: nn.Module, mesh: DeviceMesh) -> Step:
    """evaluate(tokens, targets) -> loss, with the arguments of `step`, without gradients."""

    @torch.no_grad()
    def evaluate(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        inputs = tokens.split(MICROBATCH_SEQUENCES)
        labels = targets.split(MICROBATCH_SEQUENCES)
        total = torch.zeros((), device=tokens.device)
        for index in range(len(inputs)):
            loss = loss_fn(model(inputs[index]), labels[index]) / len(inputs)
            total += loss.detach()
        # No backward has freed the gathered parameters, and an optimizer step would not update them.
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return mean_over_batch(total, mesh)

    return evaluate


def mean_over_batch(loss: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The mean over all data ranks, the same on every rank."""
    for axis in DATA_AXES:
        dist.all_reduce(loss, group=mesh.get_group(axis))
        loss /= MESH[axis]
    return loss


def clip_grad_norm(model: nn.Module, mesh: DeviceMesh, max_norm: float) -> torch.Tensor:
    """Scale gradients to a global L2 norm of at most `max_norm`; returns the norm before."""
    parameters = list(model.parameters())
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).full_tensor()
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def data_rank(mesh: DeviceMesh) -> tuple[int, int]:
    """(index, count) of the slice of the global batch that this rank trains on."""
    # Ranks are ordered as fsdp 64 > tp 4.
    rank = mesh.get_rank()
    return rank // 4, 64
