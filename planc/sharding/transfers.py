"""The transfer of a trainer's weights to a generator: what moves, over which kind of link, and how much a rank sends.

The sums are those of the hops of `transfer_core`, which the emitted program runs. Layers whose tensors take the same
hops are looked at once, and so are nodes that receive alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from math import lcm, prod
from typing import NamedTuple

from planc.diag.fast_dataclass import dataclass
from planc.ir.backend import StateLayout
from planc.ir.garbage import gc_paused
from planc.ir.model import EXPERTS, Param
from planc.ir.serve_report import ClassBytes
from planc.ir.sharding import Sharded
from planc.sharding.shard_intervals import held, stages_of_layers, stored_layout
from planc.sharding.transfer_core import RankRange, TensorLayout, cells, rotation_of, shape_of


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


CHECKPOINT_BYTES = 4
"""Bytes of an element in a checkpoint: fp32, whatever the compute dtype."""
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
    """By global rank. What a rank of the generator receives it lacks, and what a node receives from others its ranks
    lack: each once."""
    deepest: int
    """Messages in a row, from a holder to the last rank that its cell reaches."""
    model_bytes: float
    """Bytes of the weights, each once."""
    load_bytes: float
    """Bytes of fp32 that the generator's ranks read, together, to load a checkpoint of the trainer: what each holds."""
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
    return transfer_of(tensor_transfers(source, target, rest), sides, wire_bytes)


def transfer_of(
    transfers: Iterable[TensorMove], sides: tuple[RankRange, RankRange], wire_bytes: WireBytes
) -> WeightTransfer:
    """Return what `transfers` move between the ranks of two `sides`, which are the same if both have the same devices.
    `wire_bytes` gives the bytes of an element as it travels."""
    found = _Sums(sides)
    with gc_paused():
        for move in transfers:
            found.add(move, wire_bytes(move))
        return found.transfer()


@dataclass(frozen=True)
class _Group:
    """Ranks that hold or want the same cells."""

    ranks: tuple[int, ...]
    by_node: dict[int, tuple[int, ...]]
    """Those of each node, nodes ascending."""

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The nodes, ascending."""
        return tuple(self.by_node)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The different numbers of ranks that its nodes have."""
        return tuple({len(ranks) for ranks in self.by_node.values()})


NOBODY = _Group((), {})
"""The holders of a cell of a generator with devices of its own: what the trainer sends is counted apart."""


class _Sums:
    """Sums over cells. Those with the same ranks and turns are added up before they are shared out to ranks: nodes of
    wanters without a holder receive alike, whoever holds the cell, and only the others are looked at pair by pair."""

    def __init__(self, sides: tuple[RankRange, RankRange]) -> None:
        self._sides, self._colocated = sides, sides[0] == sides[1]
        self._node = {r: side.node(r) for side in sides for r in range(side.first, side.first + side.devices)}
        self._groups: list[_Group] = [NOBODY]
        self._number: dict[tuple[int, ...], int] = {(): 0}
        self._cells: dict[tuple[TensorLayout, TensorLayout], list[tuple[int, int, int, _Spread]]] = {}
        self._spread: dict[tuple[int, int], _Spread] = {}
        self._bytes: defaultdict[tuple[int, int, int], float] = defaultdict(float)
        """By holders, wanters and turn."""
        self._sent: defaultdict[int, float] = defaultdict(float)
        """By the trainer's rank, to a generator of its own devices."""
        self._classes: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0, 0.0])
        self._model_bytes, self._held = 0.0, 0

    def add(self, move: TensorMove, wire_bytes: float) -> None:
        """Add the cells of one move, whose elements travel as `wire_bytes` bytes."""
        pieces, local, near, far = 0, 0, 0, 0
        layouts, turns = (move.source, move.target), dict[int, Counter[int]]()
        if (found := self._cells.get(layouts)) is None:
            found = self._cells[layouts] = list(self._sized(*layouts))
        for index, (size, have, want, spread) in enumerate(found):
            local += size * spread.local
            if not spread.near + spread.far:
                continue
            pieces += spread.near + spread.far
            near += size * spread.near
            far += size * spread.far
            ranks, travels = self._groups[have].ranks, size * wire_bytes
            for period in (spread.period, 0 if self._colocated else len(ranks)):
                if period and period not in turns:
                    turns[period] = Counter(rotation_of(move.number, layer, 0) % period for layer in move.layers)
            for turn, times in turns[spread.period].items():
                at = have if self._colocated else 0, want, (turn + index) % spread.period
                self._bytes[at] += travels * times
            if not self._colocated:
                for turn, times in turns[len(ranks)].items():
                    self._sent[ranks[(turn + index) % len(ranks)]] += travels * times
        layers = len(move.layers)
        sums = self._classes[move.param.name]
        for place, each in enumerate((1, pieces, *(wire_bytes * n for n in (local, near, far)))):
            sums[place] += layers * each
        self._held += layers * (local + near + far)
        self._model_bytes += prod(shape_of(move.target)) * layers * wire_bytes

    def _sized(self, source: TensorLayout, target: TensorLayout) -> Iterator[tuple[int, int, int, _Spread]]:
        """Yield the elements of each cell, its groups of holders and wanters, and how it spreads."""
        numbers: dict[int, int] = {}  # parts_of keeps its groups of ranks: an id is of one of them
        for box, holders, wanters in cells(source, target, self._sides):
            have, want = (
                numbers[id(r)] if id(r) in numbers else numbers.setdefault(id(r), self._group(r))
                for r in (holders, wanters)
            )
            there = have if self._colocated else 0
            if (spread := self._spread.get((there, want))) is None:
                spread = self._spread[there, want] = _spread_of(self._groups[there], self._groups[want])
            size = 1
            for a, b in box:
                size *= b - a
            yield size, have, want, spread

    def _group(self, ranks: tuple[int, ...]) -> int:
        """Return the number of a group of ranks."""
        number = self._number.setdefault(ranks, len(self._groups))
        if number == len(self._groups):
            of_node: dict[int, list[int]] = {}
            for rank in ranks:
                of_node.setdefault(self._node[rank], []).append(rank)
            self._groups.append(_Group(ranks, {node: tuple(own) for node, own in sorted(of_node.items())}))
        return number

    def transfer(self) -> WeightTransfer:
        """Share the cells out to ranks as `hops` does, and return all sums."""
        loads: defaultdict[int, Load] = defaultdict(Load)
        shared: defaultdict[int, _Rotations] = defaultdict(lambda: defaultdict(float))
        deepest = 0
        for (have, want, rotation), size in self._bytes.items():
            spread, wanters, turns = self._spread[have, want], self._groups[want], shared[want]
            for own, missing in spread.common.values():
                _pass_on(loads, own, missing, rotation, size)
            if not spread.far:
                deepest = max(deepest, 1)
                continue
            for node in spread.common:
                turns[node, rotation % len(wanters.by_node[node])] -= size
            for count in wanters.counts:
                turns[-count, rotation % count] += size
            holders = self._groups[have].ranks
            sender = holders[rotation % len(holders)] if holders else OUTSIDE
            loads[sender].far_out += size
            last, depth = _last(wanters, spread, sender)
            ends = wanters.by_node[last]
            loads[ends[rotation % len(ends)]].far_out -= size
            deepest = max(deepest, depth)
        loads.pop(OUTSIDE, None)
        for want, turns in shared.items():
            for node, ranks in self._groups[want].by_node.items():
                for turn, lead in enumerate(ranks):
                    if size := turns[-len(ranks), turn] + turns[node, turn]:
                        loads[lead].far_in += size
                        loads[lead].far_out += size
                        _pass_on(loads, (lead,), tuple(r for r in ranks if r != lead), 0, size)
        for rank, size in self._sent.items():
            loads[rank].far_out += size
        return WeightTransfer(
            classes=tuple(
                ClassBytes(name=name, tensors=int(n), pieces=int(m), local_bytes=own, near_bytes=near, far_bytes=far)
                for name, (n, m, own, near, far) in self._classes.items()
            ),
            loads=dict(loads),
            deepest=deepest,
            model_bytes=self._model_bytes,
            load_bytes=CHECKPOINT_BYTES * self._held,
            sides=self._sides,
        )


OUTSIDE = -1
"""Stands for the trainer's rank that sends a cell to a generator of its own devices; it is counted apart."""
_Rotations = defaultdict[tuple[int, int], float]
"""Bytes of cells that a group wants, by turn: of all nodes with n of its ranks, as (-n, turn modulo n), and what is to
be taken off at a node that has a holder, as (node, turn)."""


class _Spread(NamedTuple):
    """The nodes that have holders and wanters of a cell, each with its holders and the ranks that lack the cell, and
    the messages: as many as lack it."""

    common: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
    local: int
    near: int
    far: int
    period: int
    """Turns after which the hops are the same again."""


def _spread_of(holders: _Group, wanters: _Group) -> _Spread:
    fewer = min(holders.by_node, wanters.by_node, key=len)
    common, local, alone = dict[int, tuple[tuple[int, ...], tuple[int, ...]]](), 0, len(wanters.nodes)
    for node in fewer:
        own, wanted = holders.by_node.get(node), wanters.by_node.get(node)
        if own is not None and wanted is not None:
            missing = tuple(rank for rank in wanted if rank not in own)
            common[node] = own, missing
            local += len(wanted) - len(missing)
            alone -= 1
    turns = [len(own) for own, missing in common.values() if missing]
    turns += (*wanters.counts, len(holders.ranks) or 1) if alone else ()
    return _Spread(common, local, len(wanters.ranks) - local - alone, alone, lcm(*turns))


def _last(wanters: _Group, spread: _Spread, sender: int) -> tuple[int, int]:
    """Return the last node that a cell from `sender` reaches through the network, and the messages in a row until all
    ranks of its way have it."""
    nodes, last, place = wanters.nodes, -1, spread.far
    at = bisect_left(nodes, sender)
    for i in chain(range(at - 1, -1, -1), range(len(nodes) - 1, at - 1, -1)):
        if nodes[i] in spread.common:
            continue
        last = nodes[i] if last < 0 else last
        if wanters.counts == (1,):
            break
        if len(wanters.by_node[nodes[i]]) > 1:
            return last, max(spread.far, place + 1)
        place -= 1
    return last, spread.far


def _pass_on(
    loads: defaultdict[int, Load], holders: tuple[int, ...], missing: tuple[int, ...], rotation: int, size: float
) -> None:
    """Count that ranks of one node, `missing` a cell of `size` bytes, take it from its `holders` in turn."""
    for index, rank in enumerate(missing):
        loads[holders[(rotation + index) % len(holders)]].near_out += size
        loads[rank].near_in += size
