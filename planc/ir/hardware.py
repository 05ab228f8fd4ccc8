"""Machines, as read from `hardware` files: chips, links, nodes, network tiers, tori, and clusters of them."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause, Value
from planc.ir.cache import Cache
from planc.ir.field_types import (
    Bytes,
    BytesOrNone,
    BytesPerS,
    BytesPerSOrNone,
    Count,
    Depth,
    Factor,
    FlopsPerS,
    Line,
    Method,
    Name,
    NameOrEmpty,
    NotNegative,
    OneOf,
    Positive,
    Seconds,
    Share,
    ShareOrNone,
    YearlyOrNone,
)
from planc.ir.op_tables import OpTable

if TYPE_CHECKING:
    pass

WIDE_RATES = ("fp32", "bf16", "fp16")
"""Dtypes of which a chip has at least one rate: matmuls in a lower precision without a rate of its own run at it."""
RATES = (*WIDE_RATES, "tf32", "float8", "int8", "float4")
NARROW = ("float8", "float4")
"""Low-precision dtypes whose matmuls may have their own efficiency."""
OPS = ("reduce_scatter", "all_reduce", "all_to_all")
"""Collectives for which a link or network may state an efficiency: `all_reduce_efficiency = 60 %`."""
Rated = Annotated[str, OneOf(RATES, "a dtype of a chip's rates")]
Library = Literal["torch", "torch_2_1", "te", "xla"]
LIBRARIES: dict[Library, str] = {
    "torch": "torch",
    "torch_2_1": "torch 2.1",
    "te": "Transformer Engine",
    "xla": "XLA",
}
"""Libraries that run matmuls: cuBLAS as torch calls it, in eager programs and compiled ones, and its first release for
Hopper; Transformer Engine's calls of cuBLASLt; XLA."""
Narrow = Annotated[str, OneOf(NARROW, "a narrow dtype")]
OpOfLink = Annotated[str, OneOf(OPS, "a collective")]


@dataclass(frozen=True, kw_only=True)
class Chip(Value):
    """One accelerator. Rates are dense peaks by dtype; efficiencies are measured fractions of them."""

    name: Method
    flops_per_s: dict[Rated, FlopsPerS]
    memory_bytes: Bytes
    memory_bandwidth_bytes_per_s: BytesPerS
    devices: Positive = 1
    """Framework devices per chip (2 on TPU v4 and 7x)."""
    matmul_efficiency: Share
    attention_efficiency: Share
    memory_efficiency: Share
    launch_s: Seconds
    """Fixed cost of launching one kernel (s)."""
    narrow_efficiency: dict[Narrow, Share] = field(default_factory=dict)
    """Matmul efficiency of dtypes below 16 bits, if it differs."""
    te_speed: Factor = 1.0
    """Speed of Transformer Engine's matmuls relative to torch's, whose efficiencies the chip has, in any dtype."""
    xla_speed: Factor = 1.0
    """The same of XLA's, on a chip that torch runs on too."""
    torch_2_1_speed: Factor = 1.0
    """The same of torch 2.1's, whose cuBLAS 12.1 was the first for Hopper."""
    dispatch_s: Seconds = 0.0
    """Host time to launch one op (s); shorter kernels are host-bound."""
    matmul_depth: Depth = 0.0
    """Prologue and epilogue of a matmul tile, in steps of the contraction dim."""
    matmul_tail: ShareOrNone = 0.0
    """Share of a wave of tiles that is idle in the last wave (wave quantization)."""
    contention: ShareOrNone = 0.0
    """Contention: how much an overlapped transfer slows compute down, as a share of the transfer's time."""
    step_s: Seconds = 0.0
    """Fixed overhead of a step (s): data loading, logging, host synchronisation."""
    runtime_bytes: BytesOrNone
    """Bytes held by the framework and its device context."""
    runtime_fraction: ShareOrNone
    """Share of the memory lost to fragmentation."""
    communicator_bytes: BytesOrNone
    """Bytes held by each communicator (NCCL's channels and buffers)."""
    host_bandwidth_bytes_per_s: BytesPerS
    """One-way bandwidth between the chip and its host's memory (PCIe, or NVLink-C2C)."""
    host_memory_bytes: BytesOrNone = 0.0
    """The chip's share of its host's memory (bytes); 0 if the hardware file does not say."""
    die_bandwidth_bytes_per_s: BytesPerS
    """One-way bandwidth between the framework devices of one chip; unused if a chip is one device."""
    cores: Count = 0
    """Streaming multiprocessors or tensor cores; 0 if the hardware file does not say."""
    core_lanes: Count = 0
    """fp32 lanes of one core."""
    failures_per_year: YearlyOrNone = 0.0
    """Failures per year of one chip and its attached components that end a run; 0 if the hardware file does not say."""
    tables: tuple[OpTable, ...] = ()
    """Measured rates of matmuls, attention and memory streams by size, if the hardware file has them."""

    @property
    def hosts_itself(self) -> bool:
        """True for a CPU, where one processor launches and runs the ops."""
        return not self.cores

    def efficiency(self, dtype: str, library: Library = "torch") -> float:
        """Return the fraction (0 to 1) of the peak rate of `dtype` (`fp32`, `bf16`, ...) that large matmuls of
        `library` reach."""
        speed, own = getattr(self, f"{library}_speed", 1.0), self.narrow_efficiency.get(dtype, self.matmul_efficiency)
        return own if speed == 1.0 else min(1.0, speed * own)  # a fit steps beyond 1 to find a slope


@dataclass(frozen=True, kw_only=True)
class Link(Value):
    """A link between chips. `bandwidth_bytes_per_s` is one way, per chip (in a node) or per torus link."""

    name: Method
    bandwidth_bytes_per_s: BytesPerS
    latency_s: Seconds
    efficiency: Share = 1.0
    in_network_reduction: Factor = 1.0
    """Measured speed-up of a full node's all-reduce by in-network reduction; 1 without it."""
    half_bytes: BytesOrNone = 0.0
    """The transfer size (bytes) that reaches half of the bandwidth."""
    call_s: Seconds = 0.0
    """Host overhead of each collective (s): wrapping, copying, synchronising."""
    op_efficiency: dict[OpOfLink, Share] = field(default_factory=dict)
    """Efficiency of a collective relative to the all-gather's bandwidth curve, by op; 1 if absent."""
    shared: Positive = 1
    """Chips that share one link, such as the uplink of a PCIe switch."""
    switches: Count = 0
    """Number of switches of this link in one node."""
    links: Count = 0
    """Links of one chip that have the bandwidth together, each to another chip of its node; 0: a switch gives any two
    chips all of it."""
    back_bandwidth_bytes_per_s: BytesPerSOrNone = 0.0
    """Bandwidth in the reverse direction, in a graph; 0: the same."""
    failures_per_year: YearlyOrNone = 0.0
    """Failures per year of one such link that end a run; 0 if the hardware file does not say."""
    tables: tuple[OpTable, ...] = ()
    """Measured rates of collectives by size, if the hardware file has them."""


@dataclass(frozen=True, kw_only=True)
class Level(Value):
    """One level of a tree of switches, which connects `width` units of the level below."""

    name: Method
    width: Positive
    bandwidth_bytes_per_s: BytesPerS
    """One way, per host, into this level. A node is one host unless `Cluster.host_chips` says otherwise."""
    latency_s: Seconds
    efficiency: Share = 1.0
    oversubscription: Factor = 1.0
    """Bandwidth of the units below over the bandwidth of this level."""
    in_network_reduction: Factor = 1.0
    half_bytes: BytesOrNone = 0.0
    call_s: Seconds = 0.0
    """Host overhead of each collective (s)."""
    op_efficiency: dict[OpOfLink, Share] = field(default_factory=dict)
    """Efficiency of a collective relative to the all-gather's bandwidth curve, by op; 1 if absent."""
    ports: Count = 0
    """Ports of one switch of this level; 0 if the hardware file does not say."""
    rails: Positive = 1
    """Links of one host, each to its own switch: chip i of every host is on rail i."""
    tables: tuple[OpTable, ...] = ()
    """Measured rates of collectives by size, if the hardware file has them."""


PartKind = Literal["rack", "rail", "fat_tree", "dragonfly", "torus"]


@dataclass(frozen=True, kw_only=True)
class GraphPart(Value):
    """A regular part of a graph: a few numbers define its points and links."""

    name: Name
    kind: PartKind
    numbers: dict[Name, Count]
    links: dict[Name, Method]
    """Name of the link for each use (`link` in a node, `out` of it, `up` to spines)."""
    shape: tuple[Positive, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Points(Value):
    """Points of a graph, by name."""

    names: tuple[Name, ...]
    kind: Name
    unit: NameOrEmpty = ""
    """The node or rack that contains them."""


@dataclass(frozen=True, kw_only=True)
class Wire(Value):
    """Links of a graph from each of `ends` to each of `others`."""

    ends: tuple[Name, ...]
    others: tuple[Name, ...]
    link: Method
    links: Positive = 1
    share: Share = 1.0
    """Fraction of the bandwidth that remains."""


@dataclass(frozen=True, kw_only=True)
class OwnGraph(Value):
    """A machine written as a graph of links: regular parts, and single links."""

    links: tuple[Link, ...]
    parts: tuple[GraphPart, ...]
    points: tuple[Points, ...]
    wires: tuple[Wire, ...]

    @cached_property
    def cache(self) -> Cache:
        """Cache for results that depend on the graph alone."""
        return Cache()


ChangeKind = Literal["link", "links", "host", "point", "rail", "oversubscription", "dealt"]


@dataclass(frozen=True, kw_only=True)
class Change(Value):
    """One difference between a machine and its hardware file (`--with`).

    A `link` between two points, or all `links` of a name, keep the share `value` of their bandwidth (0: removed). A
    `host`, a `point` or the `rail` with index `value` is removed. `oversubscription`: links between switches carry 1 /
    `value`. Nodes are `dealt` over `value` leaves in turn.
    """

    kind: ChangeKind
    names: tuple[Name, ...] = ()
    value: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class Cluster(Value):
    """The machines a plan runs on: `count` nodes of `chips` chips, or `count` slices of a torus."""

    kind: Literal["node", "torus"]
    name: Method
    count: Positive
    chip: Chip
    link: Link
    shape: tuple[Positive, ...]
    """(chips,) of a node; the shape of a torus in chips."""
    wrap: tuple[bool, ...] = ()
    host_chips: Positive
    """Chips per host; a whole node unless the hardware file says otherwise."""
    levels: tuple[Level, ...] = ()
    """The network between the nodes or slices, innermost first."""
    sources: tuple[Line, ...] = ()
    """Hardware file and line of each declaration in use."""
    own_graph: OwnGraph | None = None
    """The links of a machine that its hardware file writes as a graph; `levels` is then empty."""
    changes: tuple[Change, ...] = ()
    """Changes to the hardware file's links; with any, the machine is costed as a graph."""
    cause: Cause

    @cached_property
    def cache(self) -> Cache:
        """Cache for results that depend on the cluster alone."""
        return Cache()

    @property
    def is_torus(self) -> bool:
        """True if links connect the chips to a torus, False if the chips are in nodes."""
        return self.kind == "torus"

    @property
    def has_tpus(self) -> bool:
        """True if the chips are TPUs, for which XLA compiles. These are the machines with a torus."""
        return self.is_torus

    @property
    def unit(self) -> str:
        """`slice` for a torus, else `node`: the unit of `count`."""
        return "slice" if self.is_torus else "node"

    @property
    def chips(self) -> int:
        return self.count * prod(self.shape)

    @property
    def devices(self) -> int:
        return self.chips * self.chip.devices

    @property
    def hosts(self) -> int:
        return self.count * self.hosts_per_node

    @property
    def hosts_per_node(self) -> int:
        """Number of hosts of a node (usually 1), or of a slice of a torus."""
        return max(1, prod(self.shape) // self.host_chips)

    @property
    def devices_per_node(self) -> int:
        """Number of devices of a node, or of a slice of a torus."""
        return prod(self.shape) * self.chip.devices

    @property
    def links_of_chip(self) -> int:
        """Number of links that share a chip's bandwidth, where each ends at another chip: at least one to each."""
        return max(self.link.links, prod(self.shape) - 1)

    @property
    def is_routed(self) -> bool:
        """True if the times of collectives come from routes over the graph of links, False if from closed formulas."""
        return self.own_graph is not None or bool(self.changes)
