"""Splits parameters and optimizer state into boxes of the unsharded tensors, for checkpoints.

A rank's shard is one box, or several if the sharding is strided. A box is a range of indices in each dim.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planc.backends.cuda.runtime.muon import MuonAndAdamW
from planc.backends.cuda.runtime.shards import Array, cut
from planc.ir.session import STATE, Piece, Read


class DimRun(NamedTuple):
    """A range of indices in one dim: where it starts in the unsharded tensor (`start`) and in the local shard
    (`local`), and its `length`."""

    start: int
    local: int
    length: int


class DimRuns(NamedTuple):
    """A box: one range of indices per dim."""

    runs: tuple[DimRun, ...]

    @property
    def offset(self) -> tuple[int, ...]:
        return tuple(r.start for r in self.runs)

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(r.length for r in self.runs)

    @property
    def inside(self) -> tuple[slice, ...]:
        """Slices of the box in the local shard."""
        return tuple(slice(r.local, r.local + r.length) for r in self.runs)

    @property
    def whole(self) -> tuple[slice, ...]:
        """Slices of the box in the unsharded tensor."""
        return tuple(slice(r.start, r.start + r.length) for r in self.runs)


def boxes(parameter: Tensor) -> list[DimRuns]:
    """Returns the boxes of the unsharded tensor `parameter` that this rank holds."""
    return [
        DimRuns(runs) for runs in product(*(_contiguous_runs(held(parameter, dim)) for dim in range(parameter.ndim)))
    ]


def held(parameter: Tensor, dim: int) -> Tensor:
    """Returns the indices of dim `dim` of the unsharded `parameter` that this rank holds, in the order of its shard."""
    indices = torch.arange(parameter.shape[dim])
    if not isinstance(parameter, DTensor):
        return indices
    coordinate = parameter.device_mesh.get_coordinate()
    assert coordinate is not None, "this rank is outside the parameter's mesh"
    ranks_before = 1
    for axis in reversed(range(parameter.device_mesh.ndim)):
        placement: Any = parameter.placements[axis]
        if placement.is_replicate() or placement.dim % parameter.ndim != dim:
            continue
        ranks = parameter.device_mesh.size(axis)
        parts = max(1, getattr(placement, "split_factor", 1) // ranks_before)
        ranks_before *= ranks
        indices = cut(indices, 0, parts, ranks, coordinate[axis])
    return indices


def _contiguous_runs(indices: Tensor) -> list[DimRun]:
    """Splits indices into runs of consecutive numbers."""
    ends = [*(torch.diff(indices) != 1).nonzero().flatten().add(1).tolist(), len(indices)]
    starts = [0, *ends[:-1]]
    return [DimRun(int(indices[a]), a, b - a) for a, b in zip(starts, ends, strict=True) if b > a]


def pieces(modules: list[nn.Module], optimizer: torch.optim.Optimizer, divided: bool) -> list[Piece]:
    """Returns the boxes of parameters and moments that this rank saves. A box on several ranks is saved by one of them.

    The moments must exist (`with_moments`). If `divided` (over several processes), a collective.
    """
    mine = {(name, box.offset): (p, box) for name, p in _named(modules) for box in boxes(p)}
    saved = _shared_out({key: box.size for key, (_, box) in mine.items()}) if divided else set(mine)
    return [
        Piece(f"{kind}.{name}", tuple(p.shape), box.offset, box.size, _copier(_tensor(kind, p, optimizer), box))
        for kind in STATE
        for (name, offset), (p, box) in mine.items()
        if (name, offset) in saved and _has_state(kind, p, optimizer)
    ]


Key = tuple[str, tuple[int, ...]]


def _shared_out(mine: dict[Key, tuple[int, ...]]) -> set[Key]:
    """Returns those of this rank's boxes (`mine`) that it saves. If several ranks hold a box, a hash of its key chooses
    one."""
    every: list[list[Key]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, list(mine))
    holders: dict[Key, list[int]] = {}
    for rank, keys in enumerate(every):
        for key in keys:
            holders.setdefault(key, []).append(rank)
    here = dist.get_rank()
    return {key for key in mine if holders[key][_round_robin(key, len(holders[key]))] == here}


def _round_robin(key: Key, count: int) -> int:
    return zlib.crc32(repr(key).encode()) % count


def with_moments(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Creates the missing moments of `optimizer` as zeros, and sets AdamW's step count to `steps`."""
    by_muon = set(optimizer.orthogonalised) if isinstance(optimizer, MuonAndAdamW) else set()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            if parameter in by_muon:
                continue
            if "exp_avg_sq" not in state:
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["step"] = torch.tensor(float(steps), dtype=torch.float32)


@torch.no_grad()
def restore(modules: list[nn.Module], optimizer: torch.optim.Optimizer, read: Read) -> None:
    """Loads parameters and moments with the function `read`. The moments must exist (`with_moments`)."""
    for kind in STATE:
        for name, parameter in _named(modules):
            if not _has_state(kind, parameter, optimizer):
                continue
            target = _local(_tensor(kind, parameter, optimizer))
            for box in boxes(parameter):
                target[box.inside].copy_(torch.from_numpy(read(f"{kind}.{name}", box.whole)))


def not_finite(modules: list[nn.Module]) -> str:
    """Returns the name of the first local parameter in `modules` with NaN or infinity; if there is none, of the first
    such gradient; "" if all are finite."""
    held = list(_named(modules))
    values = [("parameter", name, p.detach()) for name, p in held]
    values += [("gradient", name, p.grad.detach()) for name, p in held if p.grad is not None]
    return next((f"{kind} {name}" for kind, name, v in values if not bool(torch.isfinite(_local(v)).all())), "")


def _named(modules: list[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for module in modules:
        yield from module.named_parameters()


def _has_state(kind: str, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> bool:
    """True if the parameter has this kind of state. Muon has no second moment; frozen parameters have no moments."""
    return kind == "params" or kind in optimizer.state.get(parameter, {})


def _tensor(kind: str, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
    found: Tensor = parameter if kind == "params" else optimizer.state[parameter][kind]
    return found


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copier(tensor: Tensor, box: DimRuns) -> Any:
    """Returns a function that copies the values of `box` from the sharded `tensor` into an array."""

    @torch.no_grad()
    def copy_to(array: Array) -> None:
        torch.from_numpy(array).copy_(_local(tensor)[box.inside])

    return copy_to
