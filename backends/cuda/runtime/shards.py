"""Fills this rank's shards of parameters from numpy arrays, and gathers unsharded values by full parameter name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Array = NDArray[np.float32]
Initial = Callable[[str, tuple[int, ...]], Array]


def fill(modules: list[nn.Module], initial: Initial) -> None:
    """Initialises every parameter of `modules`, one at a time: `initial` returns the unsharded array for a name and
    shape, and only the local shard is stored."""
    with torch.no_grad():
        for module in modules:
            for name, parameter in module.named_parameters():
                whole = torch.from_numpy(np.ascontiguousarray(initial(name, tuple(parameter.shape))))
                target = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                target.copy_(local_part(whole, parameter))


def local_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """Returns this rank's shard of `parameter`, cut from its unsharded value `whole`.

    Placements apply from the last mesh dimension to the first: FSDP, which is first, shards what tensor parallelism
    leaves. A strided placement shards each of `split_factor` equal parts of the dim. Later mesh dimensions have made
    some of these parts already, and are divided out.
    """
    if not isinstance(parameter, DTensor):
        return whole
    coordinate = parameter.device_mesh.get_coordinate()
    assert coordinate is not None, "this rank is outside the parameter's mesh"
    made: dict[int, int] = {}
    for axis in reversed(range(parameter.device_mesh.ndim)):
        placement: Any = parameter.placements[axis]
        if placement.is_replicate():
            continue
        dim, ranks = placement.dim, parameter.device_mesh.size(axis)
        parts = max(1, getattr(placement, "split_factor", 1) // made.get(dim, 1))
        made[dim] = made.get(dim, 1) * ranks
        whole = cut(whole, dim, parts, ranks, coordinate[axis])
    return whole


def cut(whole: Tensor, dim: int, parts: int, ranks: int, at: int) -> Tensor:
    """Returns the shard of rank `at` of `ranks`, with each of `parts` equal parts of the dim `dim` of `whole`
    sharded."""
    if parts > 1:
        apart = whole.view(*whole.shape[:dim], parts, -1, *whole.shape[dim + 1 :])
        return cut(apart, dim + 1, 1, ranks, at).flatten(dim, dim + 1)
    chunks = torch.chunk(whole, ranks, dim=dim)
    # torch.chunk returns fewer than `ranks` chunks of a short dim: the last ranks then have none.
    return chunks[at] if at < len(chunks) else whole.narrow(dim, 0, 0)


def gathered(
    modules: list[nn.Module], names: list[str], mesh: Any, pipeline: str, of: Callable[[nn.Parameter], Tensor]
) -> Iterator[tuple[str, Array]]:
    """Yields, on every rank, each parameter name in `names` and the unsharded value of the tensor that `of` returns for
    the parameter.

    `pipeline` is the mesh dimension over which the `modules` are pipelined; "" for none. A collective: every rank must
    exhaust the iterator.
    """
    held = {name: p for module in modules for name, p in module.named_parameters()}
    if not pipeline:
        for name in names:
            yield name, _numpy(_full_tensor(of(held[name])))
        return
    group = mesh.get_group(pipeline)
    every: list[dict[str, tuple[int, ...]]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(every, {n: tuple(p.shape) for n, p in held.items()}, group=group)
    device = next(iter(held.values())).device
    for name in names:
        owner = next(rank for rank, shapes in enumerate(every) if name in shapes)
        shape = every[owner][name]
        value = _full_tensor(of(held[name])).float() if name in held else torch.empty(shape, device=device)
        value = value.contiguous()
        dist.broadcast(value, group_src=owner, group=group)
        yield name, _numpy(value)


def norm(value: Tensor) -> float:
    """Returns the L2 norm of all of `value`; a collective if `value` is sharded."""
    found = torch.linalg.vector_norm(value.detach().float())
    return float(found.full_tensor() if isinstance(found, DTensor) else found)


def _full_tensor(value: Tensor) -> Tensor:
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return whole.detach()


def _numpy(value: Tensor) -> Array:
    array: Array = value.float().cpu().numpy().copy()
    return array
