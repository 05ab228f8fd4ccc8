"""Microbenchmarks of a machine for `planc calibrate`, and the cost model's prediction of each.

All devices run a probe at the same time, so that they share links and memory as in a training step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planc.costing.compute.attention import FLASH_BACKWARD, head_share
from planc.costing.compute.gemm import gemm_s
from planc.costing.compute.shapes import Gemm
from planc.costing.machine.collective_time import transfer_s
from planc.costing.machine.group import device_group
from planc.costing.machine.rates import memory_bytes_per_s, peak_flops_per_s
from planc.costing.machine.topology import DeviceGroup
from planc.costing.step.step_time import step_time
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span as Place
from planc.ir.base import Cause
from planc.ir.collective import DTYPE_BYTES, Collective, CollectiveOp
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh
from planc.ir.probe import Probe, attention_flops
from planc.ir.sharding import Sharded
from planc.ir.target import Target

if TYPE_CHECKING:
    from planc.costing import CostedPlan

STREAMED = 3
"""Memory traffic in bytes per byte of a sum of two arrays: two reads, one write."""


def predicted_s(probe: Probe, cluster: Cluster, groups: Mapping[int, DeviceGroup] | None = None) -> float:
    """Return the seconds that the cost model predicts for microbenchmark `probe` on `cluster`. `groups` are device
    groups by size, if already known."""
    chip = cluster.chip
    if probe.kind == "collective":
        group, buffer = probe.sizes
        return transfer_s(probe.op, buffer, groups[group] if groups else neighbour_group(cluster, group))
    if probe.kind == "stream":
        return STREAMED * probe.sizes[0] / memory_bytes_per_s(chip) + chip.launch_s
    peak = peak_flops_per_s(chip, probe.dtype) / chip.devices
    if probe.kind in ("attention", "attention_backward"):
        reached = peak * chip.attention_efficiency * head_share(probe.sizes[3], chip.name)
        times = FLASH_BACKWARD if probe.kind == "attention_backward" else 1.0
        return times * attention_flops(probe.sizes) / reached + chip.launch_s
    m, n, k = probe.sizes
    one = 1 / (peak * chip.efficiency(probe.dtype))
    return gemm_s(Gemm(m, n, k), chip, one, DTYPE_BYTES[probe.dtype])


def neighbour_group(cluster: Cluster, group: int) -> DeviceGroup:
    """Return a process group of `group` adjacent devices of `cluster`, with its network levels."""
    devices = cluster.devices
    mesh = Mesh.of({"outer": devices // group, "group": group}, Cause(span=Place("", 1, 1, 1, 1), sentence=""))
    return device_group(mesh, cluster, ("group",))


@dataclass(frozen=True, kw_only=True)
class MeasuredProbe:
    """A microbenchmark and the seconds of one call in the fastest of several series of calls."""

    probe: Probe
    seconds: float


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A training step of a plan, and its measured `seconds`."""

    name: str
    sharded: Sharded
    rows: tuple[Collective, ...] | None
    """The collectives of the target's program; None: the plan's own."""
    seconds: float
    target: Target | None = None
    """The target whose program was measured; None: any correct program, or another framework's."""

    @classmethod
    def of(cls, name: str, costed: CostedPlan, seconds: float) -> MeasuredStep:
        """Return the step of the costed plan `costed`, called `name`, with its measured `seconds`."""
        rows = None if costed.backend is None else costed.timed.rows
        return cls(name=name, sharded=costed.sharded, rows=rows, seconds=seconds, target=costed.target)

    def predicted_s(self, cluster: Cluster) -> float:
        """Return the predicted seconds of this step with the hardware numbers of `cluster`. Device count, layouts and
        collectives are unchanged."""
        before = self.sharded.plan
        plan = replace(before, cluster=with_numbers(before.cluster, cluster))
        plan.cache.share(before.cache)  # what a plan has worked out for itself depends on no machine
        return step_time(replace(self.sharded, plan=plan), self.rows).step.time_s


def predicted_seconds(steps: Sequence[MeasuredStep], cluster: Cluster) -> list[float]:
    """Return the predicted seconds of `steps` as `MeasuredStep.predicted_s` does, once for steps of one costed plan."""
    found: dict[tuple[int, int], float] = {}
    for step in steps:
        if (key := (id(step.sharded), id(step.rows))) not in found:
            found[key] = step.predicted_s(cluster)
    return [found[id(step.sharded), id(step.rows)] for step in steps]


def with_numbers(cluster: Cluster, numbers: Cluster) -> Cluster:
    """Return `cluster` with the chip, link and network levels of the cluster `numbers`."""
    return replace(cluster, chip=numbers.chip, link=numbers.link, levels=numbers.levels)


# The probes.

MATMULS = (
    *((256, 256, 256), (512, 256, 256), (512, 688, 256), (512, 256, 688), (128, 256, 256), (512, 128, 256)),
    *((512, 344, 256), (512, 256, 344), (256, 512, 64), (1024, 1024, 1024), (256, 256, 2048), (2048, 256, 256)),
)
"""Shapes (m, n, k) of small models, and some larger and non-square ones."""
STREAM_BYTES = (2**18, 2**20, 2**22, 2**24, 2**26)
ATTENTIONS = ((4, 8, 128, 32), (2, 8, 256, 32), (1, 4, 512, 64))
COLLECTIVE_BYTES = (2**10, 2**13, 2**16, 2**19, 2**21, 2**23, 2**25)
OPS: tuple[CollectiveOp, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
LARGE = 8
"""Factor on every dimension and buffer on an accelerator."""


def probes(devices: int, dtypes: Iterable[str], *, large: bool = False) -> list[Probe]:
    """Return microbenchmarks: matmuls in `dtypes`, memory streams, attention, and collectives for each group size that
    divides `devices`. `large` selects accelerator sizes."""
    more = LARGE if large else 1
    found = [
        Probe(kind="matmul", sizes=tuple(more * n for n in sizes), dtype=dtype) for dtype in dtypes for sizes in MATMULS
    ]
    found += [Probe(kind="stream", sizes=(more * size,)) for size in STREAM_BYTES]
    dtype = "bf16" if large else "fp32"
    found += [Probe(kind="attention", sizes=(b, more * h, more * s, e), dtype=dtype) for b, h, s, e in ATTENTIONS]
    groups = [n for n in range(2, devices + 1) if devices % n == 0]
    return found + [
        Probe(kind="collective", sizes=(group, more * size), op=op)
        for group in groups
        for op in OPS
        for size in COLLECTIVE_BYTES
    ]
