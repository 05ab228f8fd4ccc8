"""Names of a plan's machines in GKE, xpk and SkyPilot."""

from __future__ import annotations

from math import prod

from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster


@dataclass(frozen=True)
class Machine:
    """The hosts of a plan: numbers, topology, and names in GKE, xpk and SkyPilot ("" if a system has no name)."""

    tpu: bool
    nodes: int
    """Number of hosts."""
    slices: int
    hosts: int
    """Hosts per slice."""
    devices: int
    """Chips per host."""
    segment: int
    """Hosts per NVLink domain, which must be adjacent; 1 if each host is its own domain."""
    topology: str
    """Topology of a slice, such as `4x4`; empty for nodes."""
    gke: str
    """Value of GKE's accelerator label."""
    xpk: str
    """`--tpu-type` or `--device-type` of xpk."""
    skypilot: str
    """SkyPilot's accelerator."""


GPUS = {
    "h100": ("nvidia-h100-mega-80gb", "h100-mega-80gb-8", "H100"),
    "h200": ("nvidia-h200-141gb", "h200-141gb-8", "H200"),
    "b200": ("nvidia-b200", "b200-8", "B200"),
    "gb200": ("nvidia-gb200", "gb200-4", "GB200"),
    "a100": ("nvidia-a100-80gb", "", "A100-80GB"),
    "l40s": ("", "", "L40S"),
    "v100": ("nvidia-tesla-v100", "", "V100-32GB"),
    "gh200": ("", "", "GH200"),
    "rtx4090": ("", "", "RTX4090"),
    "mi300x": ("", "", "MI300X"),
}
"""Names of GPUs: GKE's accelerator label, xpk's device type of a whole host (xpk 367c838,
src/xpk/core/system_characteristics.py) and SkyPilot's accelerator. NVLink on GKE's H100 hosts is the "mega" type."""
TPUS = {
    "v4": ("tpu-v4-podslice", "v4", 2),
    "v5e": ("tpu-v5-lite-podslice", "v5litepod", 1),
    "v5p": ("tpu-v5p-slice", "v5p", 2),
    "v6e": ("tpu-v6e-slice", "v6e", 1),
}
"""Names of TPUs: GKE's accelerator label, xpk's prefix, and the cores per chip in xpk's number."""


TRAYS = {"gb200": 4, "gb300": 4, "vr200": 4, "mi455x": 4}
"""GPUs per host of a rack that is one domain of links (GB200 NVL72: 18 compute trays of 4 GPUs)."""


def machine_of(cluster: Cluster) -> Machine:
    """Return the machines of a plan's `cluster`, with their names in other systems."""
    chips = prod(cluster.shape)
    if cluster.has_tpus:
        gke, prefix, cores = TPUS.get(cluster.chip.name, ("", "", 1))
        return Machine(
            tpu=True,
            nodes=cluster.hosts,
            slices=cluster.count,
            hosts=cluster.hosts_per_node,
            devices=chips // cluster.hosts_per_node,
            segment=1,
            topology="x".join(map(str, cluster.shape)),
            gke=gke,
            xpk=f"{prefix}-{chips * cores}" if prefix else "",
            skypilot="",
        )
    gke, xpk, skypilot = GPUS.get(cluster.chip.name, ("", "", ""))
    tray = TRAYS.get(cluster.chip.name, 0)
    per_host = tray if tray and chips % tray == 0 else chips // cluster.hosts_per_node
    hosts = cluster.count * chips // per_host
    return Machine(
        tpu=False,
        nodes=hosts,
        slices=1,
        hosts=hosts,
        devices=per_host,
        segment=chips // per_host,
        topology="",
        gke=gke,
        xpk=xpk,
        skypilot=skypilot,
    )
