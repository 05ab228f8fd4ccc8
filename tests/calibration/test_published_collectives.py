"""Published bandwidths of all-reduces beside the closed forms: as near as they were before graphs of links."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from planc.cost.machine.collective_time import transfer_s
from planc.cost.machine.topology import device_group
from planc.ir.mesh import Mesh
from tests.plans import ROOT, cluster_of

MACHINES = {"B200": "b200_node", "H200": "h200_node", "H100 SXM": "h100_node", "A100-80": "a100_node"}
LARGE_BYTES = 2**34
MEDIAN = 0.1305
"""Median of the errors at 00e6ecd, 2026-11-23: 0.1304."""


def rows() -> list[dict[str, Any]]:
    """All-reduces of a known machine and number of nodes."""
    found = json.loads((ROOT / "planc/calibration/data/micro.json").read_text())
    return [
        r
        for r in found
        if r["kind"] == "collective"
        and r["hardware"]["chip"] in MACHINES
        and isinstance(r["hardware"]["nodes"], int)
        and "busbw_GBps" in r["measured"]
    ]


def error(row: dict[str, Any]) -> float:
    """Relative error of the bus bandwidth, as NCCL's tests print it."""
    hardware, options = row["hardware"], row["options"]
    members = hardware["nodes"] * hardware["devices_per_node"]
    cluster = cluster_of(f"{hardware['nodes']} x {MACHINES[hardware['chip']]}({hardware['devices_per_node']})")
    size = options.get("bytes") or options.get("size_bytes") or options.get("size")
    size = size if isinstance(size, int | float) else LARGE_BYTES
    group = device_group(Mesh.of({"axis": members}, cluster.cause), cluster, ("axis",))
    bus = size * 2 * (members - 1) / members / transfer_s("all_reduce", size, group) / 1e9
    return float(abs(bus / row["measured"]["busbw_GBps"] - 1))


def test_published_all_reduces_are_as_near_as_before() -> None:
    found = rows()
    assert len(found) == 50 and {r["options"]["op"] for r in found} == {"all_reduce"}
    assert median(map(error, found)) <= MEDIAN
