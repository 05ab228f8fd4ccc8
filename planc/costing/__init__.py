"""The cost model: memory, compute, collectives, pipeline schedules, step time. Pure functions that return bytes or
seconds.

With the mesh and cluster of a plan (`planc.load`), `device_group` returns the network levels that a group spans,
`collective_s` the seconds of a call over it, and `at_peak` the machine with its data-sheet rates;
`planc.costing.machine.roofline` has closed forms. Times are in seconds, sizes in bytes, rates in FLOP or bytes per
second and device, unless a name says otherwise.

In the examples of this package these names stand for the same values, all at data-sheet rates (`at_peak`):

    ring, node, nodes    groups: 4 devices on a ring of 50 GB/s links; 8 on NVLink (450 GB/s, 1 us); 4 such nodes on
                         a leaf switch (50 GB/s a device, 5 us)
    h100, h100_node      the chip, and a cluster of one node of eight
    torus                a TPU v5e of 4 x 4 chips
    plan                 `plans/llama3_70b_h100.plan`: Llama 3 70B on 64 nodes, mesh pp 4 > fsdp 16 > tp 8, sequences
                         of 8192 tokens, microbatch 1
    sharded, costed      the plan's layouts, and the plan with its cost for no target
    ops, params          `sharded`'s ops and parameters by name
"""

from typing import TYPE_CHECKING, Any

from planc.costing.costed import CostedPlan, cost_plan
from planc.costing.machine.collective_time import algorithm, collective_s, limit_s, peers_hit, ragged_all_to_all_s
from planc.costing.machine.group import device_group
from planc.costing.machine.topology import DeviceGroup, at_peak

if TYPE_CHECKING:
    from planc.costing.machine import roofline as roofline
    from planc.costing.machine.roofline import chip_intensity as chip_intensity
    from planc.costing.machine.roofline import critical_batch_tokens as critical_batch_tokens
    from planc.costing.machine.roofline import critical_tokens_per_device as critical_tokens_per_device
    from planc.costing.machine.roofline import largest_tp as largest_tp
    from planc.costing.machine.roofline import matmul_s as matmul_s

ROOFLINE = ("chip_intensity", "critical_batch_tokens", "critical_tokens_per_device", "largest_tp", "matmul_s")

__all__ = [
    "CostedPlan",
    "DeviceGroup",
    "algorithm",
    "at_peak",
    "collective_s",
    "device_group",
    "cost_plan",
    "limit_s",
    "peers_hit",
    "ragged_all_to_all_s",
    *ROOFLINE,
]


def __getattr__(name: str) -> Any:
    """Import the roofline functions on first use, because `planc check` does not need them."""
    if name not in ROOFLINE:
        raise AttributeError(f"module 'planc.costing' has no attribute {name!r}")
    from planc.costing.machine import roofline

    return getattr(roofline, name)
