"""Classes of tensor parallelism beside torch's own: how a module's weights, inputs and outputs lie on the ranks."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle


class DTensorParallel(ParallelStyle):
    """Shards a module's weights, input and output by these placements; its caller sees plain tensors.

    For placements that torch's own styles do not support, such as a strided shard.
    """

    def __init__(
        self,
        *,
        weights: dict[str, Placement],
        desired_input_layouts: Placement,
        output_layouts: Placement,
        input_layouts: Placement | None = None,
    ) -> None:
        super().__init__()
        self.weights = weights
        self.given, self.taken = input_layouts or desired_input_layouts, desired_input_layouts
        self.returned = output_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._divide, self._take, self._give)

    def _divide(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in list(module.named_parameters(recurse=False)):
            placements = [self.weights.get(key, Replicate())]
            whole = distribute_tensor(parameter, mesh, placements, src_data_rank=self.src_data_rank)
            module.register_parameter(key, nn.Parameter(whole, requires_grad=parameter.requires_grad))

    def _take(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: DeviceMesh) -> DTensor:
        given = inputs[0]
        if not isinstance(given, DTensor):
            given = DTensor.from_local(given, mesh, [self.given], run_check=False)
        # Redistributing to the same placement would reduce the gradient here, and not once for all consumers.
        return given if given.placements == (self.taken,) else given.redistribute(placements=[self.taken])

    def _give(self, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> torch.Tensor:
        return output.redistribute(placements=[self.returned]).to_local()


class ReplicatedInput(ParallelStyle):
    """Replicates an input that all local heads use; its gradient is a sum over the ranks' heads.

    `input_layouts` are the placements of the inputs; None leaves an input as it is.
    """

    def __init__(self, *, input_layouts: tuple[Placement | None, ...]) -> None:
        super().__init__()
        self.given = input_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(partial(self._take, device_mesh))
        return module

    def _take(self, mesh: DeviceMesh, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        pairs = zip(inputs, self.given, strict=True)
        return tuple(x if given is None else self._whole(x, given, mesh) for x, given in pairs)

    def _whole(self, x: torch.Tensor, given: Placement, mesh: DeviceMesh) -> torch.Tensor:
        placed = DTensor.from_local(x, mesh, [given], run_check=False)
        return placed.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


class ReplicatedKV(ParallelStyle):
    """Selects the keys and values of this rank's query heads from replicated ones, [B, S, heads, head_dim].

    The gradients of keys and values are partial sums over the ranks.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(partial(self._take, device_mesh))
        return module

    def _take(self, mesh: DeviceMesh, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        q, *given = inputs
        heads, first = q.shape[2], mesh.get_local_rank() * q.shape[2]
        each = heads * mesh.size() // given[0].shape[2]
        mine = slice(first // each, (first + heads - 1) // each + 1)
        whole = (DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in given)
        return q, *(x.to_local(grad_placements=[Partial()])[:, :, mine] for x in whole)


class PerHeadParamParallel(ParallelStyle):
    """Shards a module that returns its weight, one number per head, and gives each rank those of its heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._divide, None, self._give)

    def _divide(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        weight = distribute_tensor(module.weight, mesh, [Shard(0)], src_data_rank=self.src_data_rank)
        module.register_parameter("weight", nn.Parameter(weight, requires_grad=module.weight.requires_grad))

    def _give(self, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> torch.Tensor:
        return output.to_local()


class LoRAParallel(ParallelStyle):
    """Shards a LoRA layer: base and low-rank outputs are added before the output's collective."""

    def __init__(
        self,
        *,
        weights: dict[str, Placement],
        desired_input_layouts: Placement,
        made: Placement,
        output_layouts: Placement,
        input_layouts: Placement | None = None,
    ) -> None:
        super().__init__()
        self.weights, self.made, self.returned = weights, made, output_layouts
        self.given, self.taken = input_layouts or desired_input_layouts, desired_input_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._divide, self._take, self._give)

    def _divide(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in list(module.named_parameters(recurse=False)):
            part = distribute_tensor(parameter, mesh, [self.weights[key]], src_data_rank=self.src_data_rank)
            module.register_parameter(key, nn.Parameter(part, requires_grad=parameter.requires_grad))

    def _take(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: DeviceMesh) -> torch.Tensor:
        given = inputs[0]
        if not isinstance(given, DTensor):
            given = DTensor.from_local(given, mesh, [self.given], run_check=False)
        if given.placements != (self.taken,):
            given = given.redistribute(placements=[self.taken])
        # Each rank multiplies the replicated input by its rows of the weight, so its gradient is partial.
        return given.to_local(grad_placements=[Partial() if self.taken.is_replicate() else self.taken])

    def _give(self, module: nn.Module, output: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        placed = DTensor.from_local(output, mesh, [self.made], run_check=False)
        return placed.redistribute(placements=[self.returned]).to_local()


class HeadOfLoss(ParallelStyle):
    """Shards the head's weight over the vocabulary and replicates the head's input, which loss_fn multiplies.

    The gradient of the input is a partial sum over the ranks. A tied head is called with its weight.
    """

    def __init__(self, *, input_layouts: Placement) -> None:
        super().__init__()
        self.given = input_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._divide, self._take)

    def _divide(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in list(module.named_parameters(recurse=False)):
            part = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=self.src_data_rank)
            module.register_parameter(key, nn.Parameter(part, requires_grad=parameter.requires_grad))

    def _take(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: DeviceMesh) -> tuple[torch.Tensor, ...]:
        given, *weight = inputs
        if not isinstance(given, DTensor):
            given = DTensor.from_local(given, mesh, [self.given], run_check=False)
        return given.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]), *weight


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
