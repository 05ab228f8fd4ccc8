"""The weights of a trainer, sent to a generator that holds them in another layout.

Every rank derives from the same table which boxes of which tensors it sends to whom, in which order. What a rank
receives is staged; all ranks of the generator take the new weights together, or none does.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from planc.backends.common.box_reader import open_checkpoint
from planc.backends.cuda.program.facts import FACTS
from planc.backends.cuda.program.sync_names import BUCKET_BYTES, DTYPE, NARROW, SIDES, TRANSFERS
from planc.sharding.transfer_core import (
    Box,
    Hop,
    TensorLayout,
    TensorTransfer,
    cells,
    hops,
    rotation_of,
    runs_of,
    shape_of,
)

# The largest number of float8_e4m3fn, which the largest element of a block becomes.
LARGEST = 448.0


class Message(NamedTuple):
    """A box of the tensor `name` on its way."""

    name: str
    transfer: TensorTransfer
    hop: Hop


def tensors() -> Iterator[tuple[str, TensorTransfer, int]]:
    """Yield the name, the transfer and the layer (-1 of the ends) of each tensor."""
    for transfer in TRANSFERS:
        for layer in transfer.layers:
            yield transfer.name.replace("*", str(layer)), transfer, layer


@cache
def cells_of(transfer: TensorTransfer, rank: int) -> list[tuple[int, Box, tuple[int, ...], tuple[int, ...]]]:
    """Return the number, the box, the holders and the wanters of each cell that `rank` holds or wants."""
    found = enumerate(cells(transfer.source, transfer.target, SIDES))
    return [(number, *cell) for number, cell in found if rank in cell[1] or rank in cell[2]]


@cache
def messages(rank: int) -> list[list[Message]]:
    """Return what `rank` sends and receives, tick by tick.

    A bucket's messages of depth d are in the d-th tick from its own, so what a message passes on came before.
    """
    ticks: list[list[Message]] = []
    bucket, filled = 0, 0
    for name, transfer, layer in tensors():
        for number, box, holders, wanters in cells_of(transfer, rank):
            rotation = rotation_of(transfer.number, layer, number)
            for hop in hops(box, holders, wanters, rotation, SIDES, FACTS.colocated):
                if rank in (hop.sender, hop.receiver):
                    ticks += [[] for _ in range(bucket + hop.depth - len(ticks))]
                    ticks[bucket + hop.depth - 1].append(Message(name, transfer, hop))
        filled += prod(shape_of(transfer.target)) * DTYPE.itemsize
        if filled >= BUCKET_BYTES:
            bucket, filled = bucket + 1, 0
    if FACTS.float8:
        return [sorted(tick, key=lambda message: message.transfer.name in NARROW) for tick in ticks]
    return ticks


def inside(held: TensorLayout, box: Box, rank: int) -> tuple[slice, ...]:
    """Return where `box` lies in the shard of a side's rank, counted from 0 on each side."""
    found = []
    for dim, (first, last) in enumerate(box):
        before = 0
        for a, b in runs_of(held, dim, rank):
            if a <= first < b:
                found.append(slice(before + first - a, before + last - a))
            before += b - a
    return tuple(found)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def block_of(shape: tuple[int, ...], dim: int) -> int:
    """Return how many indices of a dim share a scale: those of a block of the last two dims, one of the others."""
    if dim < len(shape) - 2:
        return 1
    return FACTS.block if FACTS.block else shape[dim]


def block_scales(
    held: Mapping[str, torch.Tensor], side: int, group: dist.ProcessGroup, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the scale of each block of the matrices that become float8, by tensor: its largest magnitude / 448.

    `held` are this rank's shards of them, as the trainer (`side` 0) or the generator (1) lays them out. The first rank
    of `group` is that side's first. A collective over all its ranks, because a block may lie on several.
    """
    grids: dict[str, torch.Tensor] = {}
    for name, transfer, _ in tensors():
        if transfer.name not in NARROW:
            continue
        layout = (transfer.source, transfer.target)[side]
        shape = shape_of(layout)
        most = local(held[name]).detach().to(DTYPE).float().abs() if name in held else None
        if most is not None:
            for dim in range(len(shape)):
                block = block_of(shape, dim)
                runs = runs_of(layout, dim, dist.get_rank(group))
                which = torch.cat([torch.arange(a, b) // block for a, b in runs] or [torch.arange(0)])
                into = torch.zeros(*most.shape[:dim], -(-shape[dim] // block), *most.shape[dim + 1 :], device=device)
                which = which.to(device).view(-1, *(1 for _ in shape[dim + 1 :])).expand_as(most)
                most = into.scatter_reduce_(dim, which, most, "amax")
        grid = [-(-n // block_of(shape, dim)) for dim, n in enumerate(shape)]
        grids[name] = torch.zeros(grid, device=device) if most is None else most
    if grids:
        flat = torch.cat([grid.flatten() for grid in grids.values()])
        dist.all_reduce(flat, dist.ReduceOp.MAX, group=group)
        flat = torch.where(flat > 0, flat * (1 / LARGEST), 1.0)
        parts = flat.split([grid.numel() for grid in grids.values()])
        grids = {name: part.view_as(grid) for (name, grid), part in zip(grids.items(), parts, strict=True)}
    return grids


def narrowed(values: torch.Tensor, scales: torch.Tensor, box: Box, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the `values` of a `box` of a tensor as float8, each multiplied by 1 / the scale of its block."""
    for dim, (first, last) in enumerate(box):
        which = torch.arange(first, last, device=values.device) // block_of(shape, dim)
        scales = scales.index_select(dim, which)
    return (values.float() * (1 / scales)).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def fill(
    generator: Mapping[str, torch.Tensor], rank: int, values: Callable[[str, TensorTransfer, Box], torch.Tensor]
) -> None:
    """Fill the tensors of the generator's `rank`, box by box, with what `values` returns for each."""
    for name, transfer, _ in tensors():
        if name in generator:
            for _, box, _, wanters in cells_of(transfer, rank):
                if rank in wanters:
                    at = inside(transfer.target, box, rank - SIDES[1].first)
                    generator[name][at].copy_(values(name, transfer, box))


def fill_scales(generator: Mapping[str, torch.Tensor], rank: int, scales: Mapping[str, torch.Tensor]) -> None:
    """Fill the scales of the generator's `rank`: of the whole matrices' `scales`, those of the blocks that it has."""
    for name, transfer, _ in tensors():
        if name in generator and transfer.name in NARROW:
            own, shape = scales[name], shape_of(transfer.target)
            for dim in range(len(shape)):
                block, runs = block_of(shape, dim), runs_of(transfer.target, dim, rank - SIDES[1].first)
                which = [torch.arange(a // block, -(-b // block)) for a, b in runs]
                own = own.index_select(dim, torch.cat(which or [torch.arange(0)]).to(own.device))
            generator[f"{name}_scale_inv"].copy_(own)


class Exchange:
    """One sync on this rank: what it has, what it received, and the tensors that it fills at the end."""

    def __init__(
        self,
        trainer: Mapping[str, torch.Tensor],
        generator: Mapping[str, torch.Tensor],
        group: dist.ProcessGroup,
    ) -> None:
        self.trainer, self.generator, self.group, self.rank = trainer, generator, group, dist.get_rank(group)
        self.device = next(local(tensor) for tensor in (*trainer.values(), *generator.values())).device
        self.staged: dict[tuple[str, Box], torch.Tensor] = {}
        if FACTS.float8:
            self.scales = block_scales(trainer, 0, group, self.device)

    def own(self, name: str, transfer: TensorTransfer, box: Box) -> torch.Tensor:
        """Return a box of this rank's shard in the dtype in which it travels."""
        here = self.rank - SIDES[0].first
        part = local(self.trainer[name]).detach()[inside(transfer.source, box, here)]
        if FACTS.float8 and transfer.name in NARROW:
            return narrowed(part.to(DTYPE), self.scales[name], box, shape_of(transfer.source))
        return part.to(DTYPE)

    def packed(self, messages: list[Message]) -> torch.Tensor:
        """Return the bytes of what goes to one rank."""
        parts = []
        for name, transfer, hop in messages:
            values = self.own(name, transfer, hop.box) if hop.depth == 1 else self.staged[name, hop.box]
            parts.append(values.contiguous().flatten().view(torch.uint8))
        return torch.cat(parts)

    def room(self, messages: list[Message]) -> torch.Tensor:
        """Return the buffer for what comes from one rank; its parts are what is staged."""
        dtypes = [torch.float8_e4m3fn if FACTS.float8 and m.transfer.name in NARROW else DTYPE for m in messages]
        sizes = [[b - a for a, b in m.hop.box] for m in messages]
        lengths = [prod(size) * dtype.itemsize for size, dtype in zip(sizes, dtypes, strict=True)]
        buffer = torch.empty(sum(lengths), dtype=torch.uint8, device=self.device)
        for message, part, dtype, size in zip(messages, buffer.split(lengths), dtypes, sizes, strict=True):
            self.staged[message.name, message.hop.box] = part.view(dtype).view(size)
        return buffer

    def op(self, function: Callable[..., Any], buffer: torch.Tensor, peer: int) -> dist.P2POp:
        """Return the sending or receiving of a buffer."""
        return dist.P2POp(function, buffer, group=self.group, group_peer=peer)

    def run(self) -> None:
        """Send and receive, tick by tick."""
        for tick in messages(self.rank):
            out: dict[int, list[Message]] = {}
            into: dict[int, list[Message]] = {}
            for message in tick:
                if message.hop.sender == self.rank:
                    out.setdefault(message.hop.receiver, []).append(message)
                else:
                    into.setdefault(message.hop.sender, []).append(message)
            ops = [self.op(dist.isend, self.packed(found), peer) for peer, found in sorted(out.items())]
            ops += [self.op(dist.irecv, self.room(found), peer) for peer, found in sorted(into.items())]
            for work in dist.batch_isend_irecv(ops) if ops else []:
                work.wait()

    def take(self) -> None:
        """Fill the generator's tensors."""
        fill(self.generator, self.rank, self.arrived)
        if FACTS.float8:
            fill_scales(self.generator, self.rank, self.scales)

    def arrived(self, name: str, transfer: TensorTransfer, box: Box) -> torch.Tensor:
        """Return a box that this rank wants: received, or its own."""
        staged = self.staged.get((name, box))
        return self.own(name, transfer, box) if staged is None else staged


def decided(received: bool, number: int, group: dist.ProcessGroup, store: Any, device: torch.device) -> bool:
    """Return whether the generator takes the weights of sync `number`: the same on all ranks that live.

    A rank may fail after some ranks know that all have received, and before others do. So the first rank that writes to
    the `store` decides: a rank proposes the new weights once all have received, and the old ones if it or another one
    failed.
    """
    key, proposed = f"sync/{number}", "old"
    if received:
        try:
            ready = torch.ones(1, dtype=torch.int32, device=device)
            work = dist.all_reduce(ready, dist.ReduceOp.MIN, group=group, async_op=True)
            while not work.is_completed() and not store.check([key]):
                time.sleep(0.001)
            if work.is_completed():
                work.wait()
                proposed = "new"
        except RuntimeError:
            pass  # a rank is gone; others may know that all had received
    return bool(store.compare_set(key, "", proposed) == b"new")


@torch.no_grad()
def sync(
    trainer: Mapping[str, torch.Tensor],
    generator: Mapping[str, torch.Tensor],
    number: int,
    group: dist.ProcessGroup | None = None,
    store: Any = None,
) -> None:
    """Give the generator the trainer's weights. Every rank of both sides calls it.

    Args:
        trainer: this rank's parameters by name, of all its stages (`named_parameters`), shards as the training program
            made them; {} on a rank of the generator alone.
        generator: the tensors to fill by the same names, this rank's part of each, or views of it; {} on a rank of the
            trainer alone. A float8 matrix NAME has its scales in NAME_scale_inv.
        number: the same on all ranks and another at each sync, such as the number of the step.
        group: the ranks of both sides, the trainer's first; None: the default group.
        store: a store that all of them reach and that outlives them, such as the launcher's; None: the default group's.

    Raises:
        RuntimeError: the sync failed, because a rank is gone. Then every rank of the generator that lives has the
            weights from before.
    """
    group = group or dist.distributed_c10d._get_default_group()
    store = store or dist.distributed_c10d._get_default_store()
    exchange, received, why = None, False, None
    try:
        exchange = Exchange(trainer, generator, group)
        exchange.run()
        received = True
    except RuntimeError as error:
        why = error
    device = next(local(tensor) for tensor in (*trainer.values(), *generator.values())).device
    if not decided(received, number, group, store, device):
        raise RuntimeError("the weights did not all arrive: the generator keeps the old ones") from why
    assert exchange is not None
    exchange.take()


@torch.no_grad()
def load(folder: Path, generator: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Give the generator the weights of a checkpoint. Every rank of the generator calls it.

    A rank reads its own parts of the files, each byte once, and nothing else.

    Args:
        folder: the checkpoint, `step-...`, of the training plan or of another plan of its model.
        generator: the tensors to fill, as in `sync`.
        group: the generator's ranks, in their order; None: the default group.

    Raises:
        ValueError: the checkpoint is of another model.
    """
    group = group or dist.distributed_c10d._get_default_group()
    rank = SIDES[1].first + dist.get_rank(group)
    reader = open_checkpoint(folder, {name: shape_of(transfer.target) for name, transfer, _ in tensors()})

    def read(name: str, transfer: TensorTransfer, box: Box) -> torch.Tensor:
        return torch.from_numpy(reader.box(f"params.{name}", box)).to(DTYPE)

    if FACTS.float8:
        narrow = [name for name, transfer, _ in tensors() if name in generator and transfer.name in NARROW]
        wide = {name: torch.empty_like(generator[name], dtype=DTYPE) for name in narrow}
        fill(wide, rank, read)
        scales = block_scales(wide, 1, group, next(iter(generator.values())).device)

        def cast(name: str, transfer: TensorTransfer, box: Box) -> torch.Tensor:
            if name not in wide:
                return read(name, transfer, box)
            values = wide[name][inside(transfer.target, box, dist.get_rank(group))]
            return narrowed(values, scales[name], box, shape_of(transfer.target))

        fill(generator, rank, cast)
        fill_scales(generator, rank, scales)
    else:
        fill(generator, rank, read)
