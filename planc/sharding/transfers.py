"""The transfer of a trainer's weights to a generator: what moves, over which kind of link, and how much a rank sends.

The hops are those of `transfer_core`, which the emitted program runs. Layers whose tensors take the same hops are
looked at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from math import lcm
from typing import NamedTuple

from planc.diag.fast_dataclass import dataclass
from planc.ir.backend import StateLayout
from planc.ir.model import EXPERTS, Param
from planc.ir.serve_report import ClassBytes
from planc.ir.sharding import Sharded
from planc.sharding.shard_intervals import held, stages_of_layers, stored_layout
from planc.sharding.transfer_core import RankRange, TensorLayout, cells, hops


class TensorMove(NamedTuple):
    """The tensors of one parameter that move alike: its layers with the same stages on both sides."""

    param: Param
    number: int
    """Index of the parameter in the model: where its turns begin."""
    layers: tuple[int, ...]
    source: TensorLayout
    target: TensorLayout


def narrows(param: Param) -> bool:
    """True if a generator with float8 weights holds `param` as float8: the matrices of blocks but routers, as
    DeepSeek-V3's checkpoints and vLLM's loaders have it. All others stay in the compute dtype."""
    matrix = len(param.shape_dims) > 1 and all(param.shape_dims)
    routes = param.shape_dims[0] == ("experts",) and param.region != EXPERTS
    return matrix and "*" in param.name and not routes


WireBytes = Callable[[TensorMove], float]
"""Bytes of one element of a tensor as it travels."""


@dataclass
class Load:
    """Bytes that one rank receives and sends in a transfer, inside its node and through the network."""

    near_in: float = 0.0
    near_out: float = 0.0
    far_in: float = 0.0
    far_out: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WeightTransfer:
    """The transfer of all weights, in bytes as they travel."""

    classes: tuple[ClassBytes, ...]
    loads: dict[int, Load]
    """By global rank."""
    missing: dict[int, float]
    """Bytes that each rank of the generator lacks."""
    missing_of_node: dict[int, float]
    """Distinct bytes that each node of the generator lacks, by its first global rank."""
    deepest: int
    """Messages in a row, from a holder to the last rank that its cell reaches."""
    model_bytes: float
    """Bytes of the weights, each once."""
    sides: tuple[RankRange, RankRange]
    """The ranks of trainer and generator."""

    @property
    def pieces(self) -> int:
        """Number of messages."""
        return sum(c.pieces for c in self.classes)

    @property
    def sent_bytes(self) -> float:
        """Bytes of all messages."""
        return sum(c.near_bytes + c.far_bytes for c in self.classes)


def sides_of(source: Sharded, target: Sharded, *, colocated: bool) -> tuple[RankRange, RankRange]:
    """Return the ranks of trainer and generator. If `colocated` they are the same, else the generator's follow."""
    one, other = source.plan, target.plan
    trainer = RankRange(0, one.mesh.devices, min(one.mesh.devices, one.cluster.devices_per_node))
    if colocated:
        return trainer, trainer
    first = one.mesh.devices
    return trainer, RankRange(first, other.mesh.devices, min(other.mesh.devices, other.cluster.devices_per_node))


def tensor_transfers(source: Sharded, target: Sharded, rest: StateLayout) -> Iterator[TensorMove]:
    """Yield the tensors that move from the layout between steps of `source` to the layout of use in `target`.

    `rest` gives the axes and the dim of the storage sharding of `source`. Both have the same model.
    """
    for number, p in enumerate(target.params):
        own = source.param[p.param.name]
        have = stored_layout(source, own, "params", rest)
        want = stored_layout(target, p, "params", lambda _p, _noun: ((), None))
        theirs = stages_of_layers(target.plan, p.param)
        alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for layer, stages in stages_of_layers(source.plan, own.param).items():
            alike.setdefault((stages, theirs[layer]), []).append(layer)
        for (stages, there), layers in alike.items():
            yield TensorMove(p.param, number, tuple(layers), held(source, have, stages), held(target, want, there))


def transfer(
    source: Sharded,
    target: Sharded,
    rest: StateLayout,
    *,
    colocated: bool,
    wire_bytes: WireBytes,
    per_node: int = 0,
) -> WeightTransfer:
    """Return what moves from a trainer to a generator.

    Args:
        source: the layouts of the trainer.
        target: the layouts of the generator, of the same model.
        rest: the axes and the dim of the trainer's storage sharding.
        colocated: True if both sides have the same devices.
        wire_bytes: the bytes of an element as it travels.
        per_node: devices of a node; 0: those of the clusters.
    """
    one, other = sides_of(source, target, colocated=colocated)
    sides = (one._replace(per_node=per_node), other._replace(per_node=per_node)) if per_node else (one, other)
    found, model_bytes = _Sums(sides, colocated), 0.0
    for move in tensor_transfers(source, target, rest):
        travels = wire_bytes(move)
        found.add(move, travels)
        model_bytes += source.model.elements(move.param) * len(move.layers) * travels
    return found.transfer(model_bytes)


class _Cells(NamedTuple):
    """Cells with the same ranks on both sides, of layers `layers`, whose first turn is `rotation`."""

    holders: int
    wanters: int
    rotation: int
    layers: tuple[int, ...]


class _Sums:
    """Sums over cells. Those with the same ranks and turns are added up before their hops are walked."""

    def __init__(self, sides: tuple[RankRange, RankRange], colocated: bool) -> None:
        self._sides, self._colocated = sides, colocated
        self._node = {r: side.node(r) for side in sides for r in range(side.first, side.first + side.devices)}
        self._groups: list[tuple[int, ...]] = []
        self._number: dict[tuple[int, ...], int] = {}
        self._by_id: dict[int, int] = {}
        self._alive: list[tuple[int, ...]] = []
        self._spread: dict[tuple[int, int], _Spread] = {}
        self._bytes: dict[_Cells, float] = {}
        self._sent: dict[_Cells, float] = {}
        self._classes: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0, 0.0])

    def add(self, move: TensorMove, wire_bytes: float) -> None:
        """Add the cells of one move, whose elements travel as `wire_bytes` bytes."""
        pieces, local, near, far = 0, 0, 0, 0
        first = move.number + 1
        for index, (box, holders, wanters) in enumerate(cells(move.source, move.target, self._sides)):
            size = 1
            for a, b in box:
                size *= b - a
            have, want = self._group(holders), self._group(wanters)
            spread = self._spread_of(have, want)
            local += size * spread.local
            if not spread.missing_ranks:
                continue
            pieces += len(spread.missing_ranks)
            near += size * spread.near
            far += size * spread.far
            rotation = (first + index) % spread.period
            if self._colocated:
                key = _Cells(have, want, rotation, move.layers)
            else:
                key = _Cells(-1, want, rotation, move.layers)
                out = _Cells(have, -1, (first + index) % len(holders), move.layers)
                self._sent[out] = self._sent.get(out, 0.0) + size * wire_bytes
            self._bytes[key] = self._bytes.get(key, 0.0) + size * wire_bytes
        layers = len(move.layers)
        found = self._classes[move.param.name]
        for index, each in enumerate((1, pieces, *(wire_bytes * n for n in (local, near, far)))):
            found[index] += layers * each

    def _group(self, ranks: tuple[int, ...]) -> int:
        """Return the number of a group of ranks. Groups are met many times as the same object."""
        if (number := self._by_id.get(id(ranks))) is None:
            self._alive.append(ranks)
            number = self._by_id[id(ranks)] = self._number.setdefault(ranks, len(self._groups))
            if number == len(self._groups):
                self._groups.append(ranks)
        return number

    def _spread_of(self, have: int, want: int) -> _Spread:
        key = (have if self._colocated else -1, want)
        if (found := self._spread.get(key)) is None:
            found = self._spread[key] = self._count(self._groups[have] if self._colocated else (), self._groups[want])
        return found

    def _count(self, holders: tuple[int, ...], wanters: tuple[int, ...]) -> _Spread:
        there = set(holders)
        missing_ranks = tuple(rank for rank in wanters if rank not in there)
        nodes: dict[int, int] = {}
        near: dict[int, int] = {}
        for rank in missing_ranks:
            nodes[self._node[rank]] = nodes.get(self._node[rank], 0) + 1
        for rank in holders:
            if self._node[rank] in nodes:
                near[self._node[rank]] = near.get(self._node[rank], 0) + 1
        far = len(nodes) - len(near)
        period = lcm(len(holders) or 1, *nodes.values(), *near.values())
        return _Spread(
            missing_ranks,
            frozenset(nodes) - set(near),
            len(wanters) - len(missing_ranks),
            len(missing_ranks) - far,
            far,
            period,
        )

    def transfer(self, model_bytes: float) -> WeightTransfer:
        """Walk the hops, and return all sums; `model_bytes` are those of the weights, each once."""
        loads: defaultdict[int, Load] = defaultdict(Load)
        missing: defaultdict[int, float] = defaultdict(float)
        of_node: defaultdict[int, float] = defaultdict(float)
        walked: defaultdict[tuple[int, int, int], float] = defaultdict(float)
        deepest = 0
        for key, size in self._bytes.items():
            spread = self._spread[key.holders, key.wanters]
            for rank in spread.missing_ranks:
                missing[rank] += size * len(key.layers)
            for node in spread.nodes:
                of_node[node] += size * len(key.layers)
            for rotation, times in _rotations(key, spread.period):
                walked[key.holders, key.wanters, rotation] += size * times
        for (have, want, rotation), size in walked.items():
            holders = self._groups[have] if self._colocated else (OUTSIDE,)
            for hop in hops(((0, 1),), holders, self._groups[want], rotation, self._sides, self._colocated):
                deepest = max(deepest, hop.depth)
                inside = hop.sender != OUTSIDE and self._node[hop.sender] == self._node[hop.receiver]
                _add(loads, hop.sender, hop.receiver, size, inside)
        loads.pop(OUTSIDE, None)
        for key, size in self._sent.items():
            holders = self._groups[key.holders]
            for rotation, times in _rotations(key, len(holders)):
                loads[holders[rotation]].far_out += size * times
        return WeightTransfer(
            classes=tuple(
                ClassBytes(name=name, tensors=int(n), pieces=int(m), local_bytes=own, near_bytes=near, far_bytes=far)
                for name, (n, m, own, near, far) in self._classes.items()
            ),
            loads=dict(loads),
            missing=dict(missing),
            missing_of_node=dict(of_node),
            deepest=deepest,
            model_bytes=model_bytes,
            sides=self._sides,
        )


OUTSIDE = -1
"""Stands for the trainer's rank that sends a cell to a generator of its own devices; it is counted apart."""


class _Spread(NamedTuple):
    """The ranks that lack a cell, the nodes among theirs that have no holder, and the messages: as many as lack it."""

    missing_ranks: tuple[int, ...]
    nodes: frozenset[int]
    local: int
    near: int
    far: int
    period: int
    """Turns after which the hops are the same again."""


def _rotations(key: _Cells, period: int) -> Iterator[tuple[int, int]]:
    """Yield each turn of the cells modulo `period`, and the number of layers that have it."""
    times: dict[int, int] = {}
    for layer in key.layers:
        rotation = (key.rotation + layer) % period
        times[rotation] = times.get(rotation, 0) + 1
    yield from times.items()


def _add(loads: defaultdict[int, Load], sender: int, receiver: int, size: float, inside: bool) -> None:
    out, into = loads[sender], loads[receiver]
    if inside:
        out.near_out += size
        into.near_in += size
    else:
        out.far_out += size
        into.far_in += size
