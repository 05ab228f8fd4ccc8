"""Counts the collectives that a compiled program runs, by operation, mesh axes and dtype, times the trip counts of
loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from planc.backends.xla.audit.groups import axes_of, groups
from planc.backends.xla.audit.hlo import HOST, Computation, HloError, Instruction, Module, Shape, parse
from planc.backends.xla.audit.products import PRODUCTS, product_flops
from planc.backends.xla.audit.trip_count import WhileLoop

RAGGED = "ragged-all-to-all"
"""The op with row counts known only at run time. One of its buffers has room for the most rows possible; the other is
full."""
OPS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    RAGGED: "all_to_all",
    "collective-permute": "send_recv",
}
FUSED_SCATTER = "all-reduce-scatter"
"""The TPU compiler's name for a fusion of all-reduce and slice that runs as one reduce-scatter."""
BETWEEN_SLICES = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_TO_ALL": "all_to_all",
}
"""Collectives between slices, which the multi-slice runtime executes on data that the device hands to the host, by
their name in the attributes of a `send`. The device receives the result by a `recv`, which is not counted again."""
DTYPES = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "s32": "int32", "u32": "int32", "s64": "int64", "s8": "int8"}
DTYPES |= dict.fromkeys(("f8e4m3fn", "f8e5m2"), "float8")
NOT_CALLED = frozenset(
    {"all-reduce", "all-reduce-start", "reduce-scatter", "reduce", "reduce-window", "scatter", "sort", "map"}
    | {"select-and-scatter", "async-done", "async-update", "reduce-scatter-start"}
)
"""Opcodes whose computation applies to single elements, or was already counted at its start."""

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
NO_ESTIMATE = 2**63 - 1
"""The compiler's value for no estimate."""
_GROUPS = re.compile(r"\b(replica_groups|source_target_pairs)=")
_BETWEEN = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_SLICES = re.compile(r'_xla_megascale_target="\{([\d,:]+)\}x')
_CHAIN = re.compile(r'\bchain_id="(\d+)"')
_KERNEL = re.compile(r"\bsplash_|\bt?gmm\b")
"""In the `op_name` of what a kernel's interpreter runs: splash attention, megablox's grouped matmuls."""
_CALLS = ("calls", "to_apply", "called_computations", "async_execution_thread_computation")


@dataclass(frozen=True)
class FoundCollective:
    """One collective of the program. Bytes are per call and device; `count` is the number of calls in a step."""

    op: str
    axes: tuple[str, ...]
    exact: bool
    """True if its groups are whole mesh axes."""
    dtype: str
    group_size: int
    payload_bytes: int
    """The larger of input and output."""
    count: int
    shapes: tuple[Shape, ...]
    source: str
    """The `op_name` of the instruction."""
    senders: float = 1.0
    """Fraction of the devices that send in a permute: the last of a chain may have no receiver."""
    asynchronous: bool = False
    """True if the program continues until it needs the result."""
    cycles_meanwhile: int = 0
    """The compiler's estimate of the cycles between start and done of one call; 0 if a chain of fusions runs it or its
    done is in another computation."""

    @property
    def axis(self) -> str:
        """Return the names of the mesh axes, joined by `+`; " in part" follows if a group lacks ranks along them."""
        return "+".join(self.axes) + ("" if self.exact else " in part")

    @property
    def wire_bytes(self) -> float:
        """Return the bytes that a device sends in a step on average, by ring algorithms (`planc.ir.collective`)."""
        n = self.group_size
        if self.op == "send_recv":
            return self.payload_bytes * self.count * self.senders
        ring = self.payload_bytes * self.count * (n - 1) / n
        return 2 * ring if self.op == "all_reduce" else ring


Direction = Literal["to_host", "from_host"]
_TRANSFERS = ("copy-start", "copy", "dynamic-slice-start", "dynamic-update-slice-start", "slice-start")


@dataclass(frozen=True)
class HostMove:
    """One transfer between a device and its host's memory. Bytes are per call and device; `count` is the number of
    calls in a step."""

    direction: Direction
    payload_bytes: int
    count: int
    asynchronous: bool
    """True if the program continues until it needs the data."""
    source: str
    """The `op_name` of the instruction."""


@dataclass(frozen=True)
class FoundProduct:
    """One matrix product of the program: its FLOPs in a step, the `shape` of its result, and its `op_name`."""

    flops: int
    shape: Shape
    source: str


def _host_move(computation: Computation, i: Instruction, times: int) -> HostMove | None:
    """Return the transfer to or from the host that instruction `i` starts, `times` a step; None if it starts none.

    A dynamic slice transfers only the slice: the result of a slice that reads, the second operand of one that updates.
    """
    if i.opcode not in _TRANSFERS:
        return None
    written = i.opcode.startswith("dynamic-update")
    given = computation[i.operands[1 if written else 0]].shapes
    other = computation[i.operands[0]].shapes if written else tuple(s for s in i.shapes if s.dtype == given[0].dtype)
    there, here = given[0].space == HOST, {s.space == HOST for s in other}
    if len(given) != 1 or here <= {there}:  # empty: a copy that casts
        return None
    moved = given if there == written or not there else [s for s in other if s.space != HOST]
    return HostMove(
        direction="from_host" if there else "to_host",
        payload_bytes=min(s.bytes for s in moved),
        count=times,
        asynchronous=i.opcode.endswith("-start"),
        source=i.source,
    )


def _cycles(i: Instruction) -> int:
    """Return the compiler's estimate of the cycles of instruction `i`; 0 if there is none."""
    found = _CYCLES.search(i.attributes)
    cycles = int(found[1]) if found else 0
    return 0 if cycles == NO_ESTIMATE else cycles


def _cycles_until_done(computation: Computation, start: Instruction) -> int:
    """Return the compiler's estimate of the cycles between the asynchronous `start` and its `-done` instruction,
    without loop bodies; 0 if the `-done` is in another computation.

    From libtpu 0.0.44 the start of a collective on a SparseCore has no operands: its `-update` gives them, and begins
    it."""
    names, cycles, begun = {start.name}, 0, False
    for i in computation.instructions.values():
        if not names.isdisjoint(i.operands):
            if i.opcode.endswith("-done"):
                return cycles
            if i.opcode.endswith("-update"):
                names, cycles = {*names, i.name}, cycles if start.operands else 0
                continue
        cycles += _cycles(i) if begun else 0
        begun = begun or i is start
    return 0


@dataclass
class Inventory:
    """The collectives, host transfers, products and trip counts of loops in a compiled program. `cycles` is the
    compiler's estimate of a step without transfers."""

    found: list[FoundCollective] = field(default_factory=list)
    cycles: int = 0
    loops: dict[str, int] = field(default_factory=dict)
    transfers: list[HostMove] = field(default_factory=list)
    products: list[FoundProduct] = field(default_factory=list)

    def multiplied(self) -> list[FoundProduct]:
        """Return the products, largest first, equal ones of one operation as one; without those inside a kernel, which
        virtual CPU devices interpret."""
        flops: Counter[tuple[Shape, str]] = Counter()
        for p in self.products:
            if not _KERNEL.search(p.source):
                flops[p.shape, p.source] += p.flops
        return [FoundProduct(n, *which) for which, n in flops.most_common()]

    def transferred_bytes(self, direction: Direction) -> int:
        """Return the bytes that a device sends to host memory in a step, or receives from host memory (`direction`)."""
        return sum(m.payload_bytes * m.count for m in self.transfers if m.direction == direction)


def inventory(text: str, mesh: dict[str, int], slices: dict[str, int] | None = None) -> Inventory:
    """Return the collectives of `text`, an optimized HLO module, on `mesh` (axis to size). `slices` gives the number of
    TPU slices for each axis that spans several.

    Raises HloError for text that cannot be parsed.
    """
    module = parse(text)
    reading = _InventoryReader(module, mesh, slices or {})
    reading.walk(module[module.entry], 1)
    return reading.out


class _InventoryReader:
    def __init__(self, module: Module, mesh: dict[str, int], slices: dict[str, int]) -> None:
        self.module, self.mesh, self.slices, self.devices = module, mesh, slices, prod(mesh.values())
        self.out = Inventory()
        self.chains: dict[str, str] = {}
        """The computation whose collective was counted, by chain of fusions."""

    def walk(
        self, computation: Computation, times: int, loop: WhileLoop | None = None, meanwhile: int | None = None
    ) -> None:
        """Count the instructions of `computation`, which runs `times` a step and may be the body of the while `loop`.
        `meanwhile` are the cycles between start and done of its asynchronous call; None for a blocking call."""
        for i in computation.instructions.values():
            self.out.cycles += times * _cycles(i)
            op = OPS.get(i.opcode.removesuffix("-start"))
            if op is not None:
                if not self._goes_on(computation, i):
                    cycles = _cycles_until_done(computation, i) if i.opcode.endswith("-start") else meanwhile
                    self.out.found += self._collective(computation, i, op, times, cycles)
            elif i.opcode == "send" and _BETWEEN.search(i.attributes):
                self.out.found.append(self._between_slices(computation, i, times))
            elif _GROUPS.search(i.attributes) and not i.opcode.endswith(("-done", "-update")):
                raise HloError(f"{computation.name}: `{i.opcode}` is a collective that is not known")
            elif (move := _host_move(computation, i, times)) is not None:
                self.out.transfers.append(move)
            elif i.opcode in PRODUCTS:
                found = FoundProduct(times * product_flops(computation, i), i.shapes[0], i.source)
                self.out.products.append(found)
            self._count_called(computation, i, times, loop)

    def _goes_on(self, computation: Computation, i: Instruction) -> bool:
        """True if instruction `i` continues a collective that was already counted: a collective that overlaps with
        matmuls appears in each fusion of a chain."""
        chain = _CHAIN.search(i.attributes)
        return chain is not None and self.chains.setdefault(chain[1], computation.name) != computation.name

    def _count_called(self, computation: Computation, i: Instruction, times: int, loop: WhileLoop | None) -> None:
        """Count the computations that instruction `i` calls: each runs `times` a step, and a loop body as often for
        each iteration. `loop` is the loop whose body is `computation`, if any."""
        if i.opcode == "while":
            inner = WhileLoop(self.module, computation, i)
            self.out.loops[i.name] = inner.count
            for name in i.named("body"):
                self.walk(self.module[name], times * inner.count, inner)
        elif i.opcode == "conditional":
            self._branches(computation, i, times, loop)
        elif i.opcode not in NOT_CALLED:
            for name in self._called(i):
                begun = _cycles_until_done(computation, i) if i.opcode.endswith("-start") else None
                self.walk(self.module[name], times, meanwhile=begun)

    def _called(self, i: Instruction) -> Iterator[str]:
        for attribute in _CALLS:
            yield from i.named(attribute)

    def _branches(self, computation: Computation, i: Instruction, times: int, loop: WhileLoop | None) -> None:
        """Count each branch of a conditional as often as the counter of `loop` selects the branch. If that cannot be
        derived, count only the branch that sends the most bytes, `times` a step."""
        names = (*i.named("branch_computations"), *i.named("true_computation"), *i.named("false_computation"))
        if not names:
            raise HloError(f"{computation.name}: %{i.name} names no branches")
        taken = self._taken(i, names, loop)
        if loop is not None and taken:
            for name, runs in taken.items():
                self.walk(self.module[name], times // loop.count * runs)
            return
        tried = []
        for name in names:
            branch = _InventoryReader(self.module, self.mesh, self.slices)
            branch.walk(self.module[name], times)
            tried.append(branch.out)
        most = max(tried, key=lambda t: (sum(f.wire_bytes for f in t.found), t.cycles))
        self.out.found += most.found
        self.out.cycles += most.cycles
        self.out.loops |= most.loops
        self.out.transfers += most.transfers
        self.out.products += most.products

    def _taken(self, i: Instruction, names: tuple[str, ...], loop: WhileLoop | None) -> dict[str, int]:
        """Return the number of iterations of `loop` that take each branch in `names`; {} if that cannot be derived."""
        if loop is None:
            return {}
        try:
            chosen = loop.values(i.operands[0])
        except HloError:
            return {}
        if i.named("true_computation"):
            chosen = [int(not value) for value in chosen]
        last = len(names) - 1
        return dict(Counter(names[value if 0 <= value <= last else last] for value in chosen))

    def _between_slices(self, computation: Computation, i: Instruction, times: int) -> FoundCollective:
        """Return the collective over all TPU slices that instruction `i` runs, `times` a step. Its text lists no
        devices: each group is assumed to be the devices at one position in all slices."""
        kind, where = _BETWEEN.search(i.attributes), _SLICES.search(i.attributes)
        members = prod(self.slices.values())
        op = BETWEEN_SLICES.get(kind[1]) if kind else None
        if op is None or where is None or _count(where[1]) != members:
            raise HloError(f"{computation.name}: %{i.name} goes between slices in a way that is not known")
        (shape,) = computation[i.operands[0]].shapes
        return FoundCollective(
            op=op,
            axes=tuple(self.slices),
            exact=True,
            dtype=DTYPES.get(shape.dtype, shape.dtype),
            group_size=members,
            payload_bytes=shape.bytes * (members if op == "all_gather" else 1),
            count=times,
            shapes=(shape,),
            source="",
        )

    def _collective(
        self, computation: Computation, i: Instruction, op: str, times: int, meanwhile: int | None
    ) -> Iterator[FoundCollective]:
        """Yield the collective of instruction `i`, once for each dtype of its operands. `op` is planc's name of it; it
        runs `times` a step. `meanwhile` are the cycles between its start and done; None for a blocking call."""
        carried_on = _CHAIN.search(i.attributes) is not None
        if op == "all_reduce" and computation.name.startswith(FUSED_SCATTER):
            op = "reduce_scatter"
        ids = groups(i.attributes, self.devices)
        axes, exact = axes_of(ids, self.mesh)
        shapes = tuple(s for name in i.operands for s in computation[name].shapes)
        if i.opcode.startswith(RAGGED):
            shapes = (min(shapes[:2], key=lambda s: s.bytes),)
        if not shapes:
            raise HloError(f"{computation.name}: %{i.name} moves nothing")
        members = self.devices if op == "send_recv" else ids.shape[1]
        for dtype in dict.fromkeys(s.dtype for s in shapes):
            alike = tuple(s for s in shapes if s.dtype == dtype)
            sent = sum(s.bytes for s in alike)
            yield FoundCollective(
                op=op,
                axes=axes,
                exact=exact or op == "send_recv",
                dtype=DTYPES.get(dtype, dtype),
                group_size=members,
                payload_bytes=sent * members if op == "all_gather" else sent,
                count=times,
                shapes=alike,
                source=i.source,
                senders=len(ids) / self.devices if op == "send_recv" else 1.0,
                asynchronous=carried_on or meanwhile is not None,
                cycles_meanwhile=meanwhile or 0,
            )


def _count(numbers: str) -> int:
    """Return how many numbers are in a list such as `1,2` or, with an inclusive range, `0:7`."""
    ends = [[int(n) for n in part.split(":")] for part in numbers.split(",")]
    return sum(each[-1] - each[0] + 1 for each in ends)
