"""Closed-form limits between compute-bound and communication-bound layouts.

Tokens per device, feed-forward widths and group sizes at which the transfers of a layer take as long as its matmuls.
These are the rules of thumb of the public scaling book (https://jax-ml.github.io/scaling-book, roofline, training and
gpus chapters); `planc.costing.step.step_time` computes a plan's own step time without them. Rates are per device, with
efficiencies and latencies unless the cluster comes from `planc.costing.machine.topology.at_peak`.
"""

from __future__ import annotations

from typing import Literal

from planc.costing.machine.collective_time import limit_s
from planc.costing.machine.rates import memory_bytes_per_s
from planc.costing.machine.topology import DeviceGroup, GroupLevel
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip, Cluster

HALF_BYTES = 2
"""bf16, the dtype that these rules assume for weights and transferred activations."""


def peak(chip: Chip, dtype: str = "bf16") -> float:
    """Return the FLOP/s of one device of `chip` in `dtype`, with the chip's matmul efficiency.

    Raises KeyError for a dtype in which the chip has no rate.

    >>> f"{peak(h100) / 1e12:.0f} TFLOP/s"
    '989 TFLOP/s'
    """
    return chip.flops_per_s[dtype] * chip.matmul_efficiency / chip.devices


# One chip.


def chip_intensity(chip: Chip, dtype: str = "bf16") -> float:
    """Return the FLOPs per byte of device memory at which a matmul in `dtype` takes as long as its memory traffic.

    >>> round(chip_intensity(h100))
    295
    """
    return peak(chip, dtype) / memory_bytes_per_s(chip)


def critical_tokens(chip: Chip, dtype: str = "bf16", weights: str = "") -> float:
    """Return the tokens per device at which a matmul takes as long on `chip` as reading its weights from device memory.

    A token takes 2 FLOPs per weight. `dtype` is the dtype of the matmuls, `weights` that of the stored weights ("":
    also `dtype`). Source: public scaling book, roofline.md, questions 1 and 2.

    >>> round(critical_tokens(h100)), round(critical_tokens(h100, "bf16", "float8"))
    (295, 148)
    """
    return chip_intensity(chip, dtype) * DTYPE_BYTES[weights or dtype] / HALF_BYTES


def matmul_s(chip: Chip, m: int, k: int, n: int, dtype: str = "bf16") -> float:
    """Return the seconds of an [`m`, `k`] x [`k`, `n`] matmul in `dtype` on one device of `chip`: the longer of its
    2mkn FLOPs and the traffic of its three arrays, plus a launch.

    >>> f"{matmul_s(h100, 8192, 8192, 8192) * 1e3:.2f} ms, {matmul_s(h100, 1, 8192, 8192) * 1e6:.0f} us"
    '1.11 ms, 40 us'
    """
    traffic = (m * k + k * n + m * n) * DTYPE_BYTES[dtype]
    return max(2.0 * m * k * n / peak(chip, dtype), traffic / memory_bytes_per_s(chip)) + chip.launch_s


def stream_s(read_bytes: float, chips: int, chip: Chip, source: Literal["memory", "host"] = "memory") -> float:
    """Return the seconds in which `chips` chips read `read_bytes` once. Each chip reads an equal share, from its own
    memory or from its host's.

    `source` is `memory` for the device memory of `chip`, `host` for the link to its host.

    >>> f"{stream_s(140e9, 8, h100) * 1e3:.1f} ms"  # 70 billion parameters in bf16, of a node of eight
    '5.2 ms'
    """
    rate = memory_bytes_per_s(chip) * chip.devices if source == "memory" else chip.host_bandwidth_bytes_per_s
    return read_bytes / chips / rate


# Data parallelism.


def link_intensity(cluster: Cluster, group: DeviceGroup, dtype: str = "bf16") -> float:
    """Return the FLOPs that a device of `cluster` executes in `dtype` while a large `group` gathers one byte.

    >>> round(link_intensity(h100_node, node))  # 989e12 / 450e9
    2198
    """
    return peak(cluster.chip, dtype) * limit_s("all_gather", 1.0, group)


def critical_tokens_per_device(
    cluster: Cluster, group: DeviceGroup, *, divided: int = 1, exact: bool = False, dtype: str = "bf16"
) -> float:
    """Return the tokens per device above which data parallelism (DP, or FSDP) over `group` is compute-bound.

    A layer of P weights takes 4P FLOPs per token in the backward and moves 2P bytes twice (reduce-scatter and
    all-gather), so tokens / device = rate x seconds per byte.

    Args:
        cluster: the machine, for the compute rate of one device.
        group: the group that gathers and reduces the weights.
        divided: number of shards of the weights over other axes; each device then transfers only its shard.
        exact: True counts (n - 1) / n of the buffer for n members, False all of it.
        dtype: dtype of the matmuls.

    >>> round(critical_tokens_per_device(h100_node, node))  # 989e12 / 450e9
    2198
    """
    many = link_intensity(cluster, group, dtype) / divided
    return many * _share(group) if exact else many


def critical_batch_tokens(
    cluster: Cluster, group: DeviceGroup, *, divided: int = 1, exact: bool = False, dtype: str = "bf16"
) -> float:
    """Return the smallest batch (tokens) that is compute-bound, on `divided` times as many devices as `group` has.

    Arguments as for `critical_tokens_per_device`: `divided` is the number of shards of the weights by other axes.

    >>> round(critical_batch_tokens(h100_node, node))  # 8 devices of 2,198 tokens
    17582
    """
    each = critical_tokens_per_device(cluster, group, divided=divided, exact=exact, dtype=dtype)
    return each * group.size * divided


# Tensor parallelism.


def largest_tp(cluster: Cluster, group: DeviceGroup, ffn: float, *, exact: bool = False, dtype: str = "bf16") -> float:
    """Return the degree of tensor parallelism, over links like those of `group`, up to which a layer of feed-forward
    width `ffn` is compute-bound.

    If `exact` is True, traffic between the S devices below the slowest level (a node's, say) is left out: (Y - S) / Y
    of the buffer crosses that level at degree Y. Otherwise the whole buffer does.

    >>> round(largest_tp(h100_node, node, ffn=28672), 1)
    13.0
    """
    many = ffn / link_intensity(cluster, group, dtype)
    return many + _slowest(group).below if exact else many


# Both together.


def critical_tokens_fsdp_tp(
    cluster: Cluster, fsdp: DeviceGroup, tp: DeviceGroup, ffn: float, dtype: str = "bf16"
) -> float:
    """Return the tokens per device above which FSDP with the best degree of tensor parallelism is compute-bound.

    A higher degree transfers fewer weights and more activations. At the best degree both take equally long, and the
    result is 4 x intensity over `fsdp` x intensity over `tp` / `ffn`, the feed-forward width (`link_intensity`).

    >>> round(critical_tokens_fsdp_tp(h100_node, node, node, ffn=28672))
    674
    """
    return 4 * link_intensity(cluster, fsdp, dtype) * link_intensity(cluster, tp, dtype) / ffn


# Experts.


def critical_expert_ffn(cluster: Cluster, group: DeviceGroup, experts: int, choices: int, dtype: str = "bf16") -> float:
    """Return the expert width F above which expert parallelism over `experts` devices is compute-bound.

    A token of D values takes 4 k D F FLOPs in its k experts (`choices`). It is sent to each unit of S devices (a node,
    say) that holds one of them, at most k S / `experts` of the units, and back; its own unit costs nothing.

    >>> round(critical_expert_ffn(h100_node, nodes, experts=32, choices=4))
    14835
    """
    unit = _slowest(group).below
    moved = (experts - unit) / experts * min(unit * choices / experts, 1.0)
    return link_intensity(cluster, group, dtype) * moved * experts / choices


def _slowest(group: DeviceGroup) -> GroupLevel:
    assert group.levels, "a roofline of a group needs more than one device"
    return max(group.levels, key=lambda p: 1 / p.unit_bytes_per_s)


def _share(group: DeviceGroup) -> float:
    """Return (n - 1) / n for the n members of `group` at its bottleneck level."""
    return 1 - 1 / _slowest(group).members
