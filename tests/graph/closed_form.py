"""The closed forms beside the routed graph, for every bundled machine: `make topologies` compares 8 to 4,096 devices.

A cell is a machine, a number of devices, an axis (its size and how far apart its neighbours are) and a collective. Its
difference is that of the seconds a byte, at data-sheet rates without latency, of the fastest way.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from planc.costing.machine.collective_time import transfer_s
from planc.costing.machine.group import device_group
from planc.costing.machine.topology import at_peak
from planc.costing.routes import routed_group
from planc.ir.collective import NetworkOp
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh
from planc.language import library
from tests.plans import cluster_of

BOUNDS = tomllib.loads((Path(__file__).parent / "bounds.toml").read_text())
OPS: tuple[NetworkOp, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "broadcast")
SIZES = tuple(2**k for k in range(3, 13))
IN_A_RACK = 64
"""Chips of an NVL72 rack that meshes of powers of two use."""
IN_A_SLICE = 256
"""Largest slice of a torus of two dimensions."""
LARGE_BYTES = 1e12


class Cell(NamedTuple):
    machine: str
    devices: int
    size: int
    stride: int
    op: NetworkOp
    closed_s: float
    routed_s: float
    bound: float

    @property
    def apart(self) -> float:
        return abs(self.closed_s / self.routed_s - 1)


def cluster_with(machine: str, devices: int) -> Cluster:
    """A cluster of so many devices, at its data-sheet rates; tori are as near to a cube as they can be."""
    plain = cluster_of(f"1 x {machine}{'(2x2x2)' if machine in CUBES else '(2x2)' if machine in SQUARES else ''}")
    chips = devices // plain.chip.devices
    if machine in CUBES:
        return at_peak(cluster_of(f"{machine}({_shape(chips, 3)})"))
    if machine in SQUARES:
        slices = max(1, chips // IN_A_SLICE)
        return at_peak(cluster_of(f"{slices} x {machine}({_shape(min(chips, IN_A_SLICE), 2)})"))
    most = IN_A_RACK if plain.chips > IN_A_RACK else plain.chips
    inside = f"({min(devices, most)})" if plain.chips > IN_A_RACK else ""
    return at_peak(cluster_of(f"{max(1, devices // most)} x {machine}{inside}"))


CUBES = ("tpu_v4", "tpu_v5p", "tpu_7x")
SQUARES = ("tpu_v5e", "tpu_v6e")


def _shape(chips: int, dims: int) -> str:
    lengths, i = [1] * dims, 0
    while chips > 1:
        lengths[i % dims] *= 2
        chips //= 2
        i += 1
    return "x".join(map(str, sorted(lengths)))


def family(cluster: Cluster) -> str:
    """The part of bounds.toml that a machine is in."""
    if cluster.kind == "node":
        return "towers"
    if cluster.count > 1:
        return "several_slices"
    return (
        "wrapped_tori"
        if all(w or n == 1 for n, w in zip(cluster.shape, cluster.wrap, strict=True))
        else "tori_with_lines"
    )


def cells(machine: str, devices: int) -> Iterator[Cell]:
    """Every axis of a power of two, at every stride that is one, with every collective."""
    cluster = cluster_with(machine, devices)
    assert cluster.devices == devices
    bounds = BOUNDS[family(cluster)]
    strides = [2**k for k in range(devices.bit_length() - 1)]
    for stride in strides:
        for size in [2 * n for n in strides if 2 * n * stride <= devices]:
            mesh = Mesh.of({"outer": devices // size // stride, "axis": size, "inner": stride}, cluster.cause)
            closed, routed = device_group(mesh, cluster, ("axis",)), routed_group(mesh, cluster, ("axis",))
            for op in OPS:
                closed_s, routed_s = (transfer_s(op, LARGE_BYTES, group) for group in (closed, routed))
                yield Cell(machine, devices, size, stride, op, closed_s, routed_s, bounds[op])


def main() -> int:
    """Print the largest difference of every machine and collective; 1 if a cell is beyond its bound."""
    machines = sys.argv[1:] or sorted(library.machines())
    beyond = total = 0
    for machine in machines:
        start, worst = perf_counter(), dict.fromkeys(OPS, 0.0)
        for devices in SIZES:
            for cell in cells(machine, devices):
                total += 1
                worst[cell.op] = max(worst[cell.op], cell.apart)
                if cell.apart > cell.bound:
                    beyond += 1
                    print(f"  {cell} is {cell.apart:.3g} apart")
        print(
            f"{machine:12} {perf_counter() - start:5.1f} s  " + "  ".join(f"{op} {worst[op]:.1e}" for op in OPS),
            flush=True,
        )
    print(f"{total:,} cells, {beyond} beyond their bound")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
