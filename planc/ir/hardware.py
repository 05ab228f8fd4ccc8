"""Chips, links, nodes, network levels, tori and the cluster made of them. Read from `hardware` files."""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause, Value


@dataclass(frozen=True, kw_only=True)
class Chip(Value):
    """One accelerator. Rates are dense peaks by dtype; efficiencies are measured fractions of them."""

    name: str
    flops_per_s: dict[str, float]
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    devices: int = 1
    """Framework devices on one chip (2 on TPU v4 and 7x)."""
    matmul_efficiency: float
    attention_efficiency: float
    memory_efficiency: float
    launch_s: float
    """Fixed cost of starting one kernel."""
    narrow_efficiency: dict[str, float] = field(default_factory=dict)
    """Matmul efficiency of dtypes narrower than 16 bits, where it is another."""
    dispatch_s: float = 0.0
    """The host's time to ask for one op; kernels that are shorter wait for it."""
    matmul_depth: float = 0.0
    """Steps of the contraction that starting and ending a matmul's tile takes as long as."""
    matmul_tail: float = 0.0
    """Part of a wave of tiles that the last one leaves unused."""
    contention: float = 0.0
    """Of a transfer that runs beside compute, the share that slows compute down all the same."""
    step_s: float = 0.0
    """What a step takes besides kernels: reading data, logging, waiting for the host."""
    runtime_bytes: float
    """Held by the framework, its context and the allocator's fragmentation."""
    runtime_fraction: float
    """Share of the memory lost to fragmentation."""
    communicator_bytes: float
    """Held by each communicator (NCCL's channels and rings)."""
    host_bandwidth_bytes_per_s: float
    """One way between the chip and its host's memory (PCIe, or NVLink-C2C)."""
    die_bandwidth_bytes_per_s: float
    """One way between the framework devices of one chip; unused where a chip is one device."""
    cores: int = 0
    """Streaming multiprocessors or tensor cores; 0 when the hardware file does not say."""
    core_lanes: int = 0
    """fp32 lanes of one core."""

    @property
    def hosts_itself(self) -> bool:
        """A process of a computer: what asks for an op and what does it are one processor."""
        return not self.cores

    def efficiency(self, dtype: str) -> float:
        """The fraction of a dtype's peak that large matmuls reach."""
        return self.narrow_efficiency.get(dtype, self.matmul_efficiency)


@dataclass(frozen=True, kw_only=True)
class Link(Value):
    """A link between chips. `bandwidth_bytes_per_s` is one way, per chip (node) or per torus link."""

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float = 1.0
    in_network_reduction: float = 1.0
    """How much faster a full node's all-reduce runs when the switches add; 1: they do not."""
    half_bytes: float = 0.0
    """A transfer of this size runs at half the bandwidth."""
    call_s: float = 0.0
    """The framework's own time for each collective that it asks for: it wraps, copies and waits."""
    op_efficiency: dict[str, float] = field(default_factory=dict)
    """By collective, how fast it runs beside what an all-gather's curve says of it; 1 where it says nothing."""
    shared: int = 1
    """Chips behind one link: a PCIe switch has one way up for several."""
    switches: int = 0
    """Switches that this link needs in one node."""


@dataclass(frozen=True, kw_only=True)
class Level(Value):
    """One level of a tree of switches: `width` units of the level below meet here."""

    name: str
    width: int
    bandwidth_bytes_per_s: float
    """One way, per host, into this level. A node is one host unless `Cluster.host_chips` says otherwise."""
    latency_s: float
    efficiency: float = 1.0
    oversubscription: float = 1.0
    """How much more the units below could send than this level takes."""
    in_network_reduction: float = 1.0
    half_bytes: float = 0.0
    call_s: float = 0.0
    """The framework's own time for each collective that it asks for."""
    op_efficiency: dict[str, float] = field(default_factory=dict)
    """By collective, how fast it runs beside what an all-gather's curve says of it."""
    ports: int = 0
    """Ports of one switch of this level; 0 when the hardware file does not say."""
    rails: int = 1
    """Links of one host, each to its own switch: chip i of every host meets on rail i."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Value):
    """The machines a plan runs on: `count` nodes of `chips` chips, or `count` slices of a torus."""

    kind: Literal["node", "torus"]
    name: str
    count: int
    chip: Chip
    link: Link
    shape: tuple[int, ...]
    """A node: (chips,). A torus: its shape in chips."""
    wrap: tuple[bool, ...] = ()
    host_chips: int
    """Chips behind one host's network cards; a whole node unless the hardware file says otherwise."""
    levels: tuple[Level, ...] = ()
    """The network between the nodes or slices, innermost first."""
    sources: tuple[str, ...] = ()
    """Where the numbers come from: the hardware file and its line for each name used."""
    cause: Cause

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
        """Hosts of one node (1 as a rule), or of one slice of a torus."""
        return max(1, prod(self.shape) // self.host_chips)

    @property
    def devices_per_node(self) -> int:
        """Devices of one node, or of one slice of a torus."""
        return prod(self.shape) * self.chip.devices
