"""When a layout is bound by compute and when by communication, in closed form.

Tokens per device, feed-forward widths and group sizes at which the transfers of a layer take as long as its
matmuls. These are the rules of thumb of the public scaling book (https://jax-ml.github.io/scaling-book,
roofline, training and gpus chapters); a plan's own step time comes from `planc.costing.step.step_time`, which needs
none of them. Rates are per device. `planc.costing.machine.topology.at_peak` takes efficiencies and latencies out.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import Literal

from planc.costing.machine.collective_time import limit_s
from planc.costing.machine.rates import memory_bytes_per_s
from planc.costing.machine.topology import DeviceGroup, GroupLevel
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip, Cluster

HALF_BYTES = 2
"""bf16, the dtype that these rules assume for weights and activations on the wire."""


def peak(chip: Chip, dtype: str = "bf16") -> float:
    """FLOP/s of one device of `chip` in `dtype`, with the chip's matmul efficiency.

    Raises KeyError for a dtype in which the chip has no rate.

    >>> f"{peak(h100) / 1e12:.0f} TFLOP/s"
    '989 TFLOP/s'
    """
    return chip.flops_per_s[dtype] * chip.matmul_efficiency / chip.devices


# One chip.


def chip_intensity(chip: Chip, dtype: str = "bf16") -> float:
    """FLOP per byte of device memory at which a matmul in `dtype` takes as long on `chip` as its memory traffic.

    >>> round(chip_intensity(h100))
    295
    """
    return peak(chip, dtype) / memory_bytes_per_s(chip)


def critical_tokens(chip: Chip, dtype: str = "bf16", weights: str = "") -> float:
    """Tokens at which a matmul takes as long on `chip` as its weights from device memory: 2 FLOPs for each weight.

    `dtype` is that of the products, `weights` that of the stored weights; an empty string is the same one. Source:
    public scaling book, roofline.md, questions 1 and 2.

    >>> round(critical_tokens(h100)), round(critical_tokens(h100, "bf16", "float8"))
    (295, 148)
    """
    return chip_intensity(chip, dtype) * DTYPE_BYTES[weights or dtype] / HALF_BYTES


def matmul_s(chip: Chip, m: int, k: int, n: int, dtype: str = "bf16") -> float:
    """Seconds of an [`m`, `k`] x [`k`, `n`] matmul in `dtype` on one device of `chip`: the slower of its 2mkn FLOPs and
    its three arrays, and a launch.

    >>> f"{matmul_s(h100, 8192, 8192, 8192) * 1e3:.2f} ms, {matmul_s(h100, 1, 8192, 8192) * 1e6:.0f} us"
    '1.11 ms, 40 us'
    """
    traffic = (m * k + k * n + m * n) * DTYPE_BYTES[dtype]
    return max(2.0 * m * k * n / peak(chip, dtype), traffic / memory_bytes_per_s(chip)) + chip.launch_s


def vector_ops_per_s(chip: Chip, clock_hz: float) -> float:
    """fp32 operations of one `chip` per second at `clock_hz` cycles a second: one an fp32 lane and cycle.

    >>> f"{vector_ops_per_s(h100, clock_hz=1.59e9) / 1e12:.1f}e12"
    '26.9e12'
    """
    return vector_lanes(chip) * clock_hz


def vector_lanes(chip: Chip) -> int:
    """fp32 lanes of one `chip`; 0 when its hardware file does not say.

    >>> vector_lanes(h100)  # 132 cores of 128 lanes
    16896
    """
    return chip.cores * chip.core_lanes


def stream_s(read_bytes: float, chips: int, chip: Chip, source: Literal["memory", "host"] = "memory") -> float:
    """Seconds for `chips` chips to read `read_bytes` once, each its part, from their memory or their hosts'.

    `source` is `memory` for the device memory of `chip`, `host` for the way from its host.

    >>> f"{stream_s(140e9, 8, h100) * 1e3:.1f} ms"  # 70 billion parameters in bf16, of a node of eight
    '5.2 ms'
    """
    rate = memory_bytes_per_s(chip) * chip.devices if source == "memory" else chip.host_bandwidth_bytes_per_s
    return read_bytes / chips / rate


def stream_critical_tokens(chip: Chip, dtype: str = "bf16") -> float:
    """Tokens of a matmul in `dtype` that hide its weights coming from the host memory of `chip`: 2 FLOPs for each
    weight.

    >>> round(stream_critical_tokens(h100))  # 989e12 / 64e9
    15453
    """
    return peak(chip, dtype) * chip.devices / chip.host_bandwidth_bytes_per_s * DTYPE_BYTES[dtype] / HALF_BYTES


# Data parallelism.


def link_intensity(cluster: Cluster, group: DeviceGroup, dtype: str = "bf16") -> float:
    """FLOP per byte gathered over `group`, as for a group of many members: compute rate of `cluster`'s device in
    `dtype` times seconds per byte.

    >>> round(link_intensity(h100_node, node))  # 989e12 / 450e9
    2198
    """
    return peak(cluster.chip, dtype) * limit_s("all_gather", 1.0, group)


def critical_tokens_per_device(
    cluster: Cluster, group: DeviceGroup, *, divided: int = 1, exact: bool = False, dtype: str = "bf16"
) -> float:
    """Tokens on each device at which data parallelism (DP, or FSDP) over `group` is bound by compute.

    A layer of P weights takes 4P FLOPs a token backward and moves 2P bytes twice (reduce-scatter and gather), so tokens
    / device = rate x seconds per byte.

    Args:
        cluster: the machine, for the compute rate of one device.
        group: the group that gathers and reduces the weights.
        divided: shards of the weights by other axes; each device then moves only its part.
        exact: counts (n - 1) / n of the buffer instead of all of it.
        dtype: dtype of the matmuls.

    >>> round(critical_tokens_per_device(h100_node, node))  # 989e12 / 450e9
    2198
    """
    many = link_intensity(cluster, group, dtype) / divided
    return many * _share(group) if exact else many


def critical_batch_tokens(
    cluster: Cluster, group: DeviceGroup, *, divided: int = 1, exact: bool = False, dtype: str = "bf16"
) -> float:
    """Smallest batch, in tokens, that keeps the group `group` and the axes that divide the weights bound by compute.

    Arguments as for `critical_tokens_per_device`: `divided` is the number of shards of the weights by other axes.

    >>> round(critical_batch_tokens(h100_node, node))  # 8 devices of 2,198 tokens
    17582
    """
    each = critical_tokens_per_device(cluster, group, divided=divided, exact=exact, dtype=dtype)
    return each * group.size * divided


def largest_data_parallel(cluster: Cluster, group: DeviceGroup, batch_tokens: float, dtype: str = "bf16") -> float:
    """Devices over which a batch of `batch_tokens` stays bound by compute, with links like those of `group`.

    >>> round(largest_data_parallel(h100_node, node, batch_tokens=4e6))  # 2,198 tokens each
    1820
    """
    return batch_tokens / critical_tokens_per_device(cluster, group, dtype=dtype)


# Tensor parallelism.


def critical_ffn(cluster: Cluster, group: DeviceGroup, degree: float, dtype: str = "bf16") -> float:
    """Feed-forward width at which tensor parallelism over `degree` devices is bound by compute.

    A token takes 4 D F / degree FLOPs and moves 2 x 2 D bytes (gather before, scatter after), so F = rate x seconds per
    byte x degree.

    >>> round(critical_ffn(h100_node, node, degree=8))  # 8 x 989e12 / 450e9
    17582
    """
    return link_intensity(cluster, group, dtype) * degree


def largest_tp(cluster: Cluster, group: DeviceGroup, ffn: float, *, exact: bool = False, dtype: str = "bf16") -> float:
    """Degree of tensor parallelism, over links like those of `group`, up to which a layer of feed-forward width `ffn`
    is bound by compute.

    `exact` counts that at degree Y in units of S devices only (Y - S) / Y of the buffer crosses the level.

    >>> round(largest_tp(h100_node, node, ffn=28672), 1)
    13.0
    """
    many = ffn / link_intensity(cluster, group, dtype)
    return many + _slowest(group).below if exact else many


# Both together.


def critical_tokens_fsdp_tp(
    cluster: Cluster, fsdp: DeviceGroup, tp: DeviceGroup, ffn: float, dtype: str = "bf16"
) -> float:
    """Tokens on each device at which FSDP and tensor parallelism, divided at their best, are bound by compute.

    The weights' transfers fall with the degree of tensor parallelism and the activations' rise with it; at the best
    division both take as long: 4 x intensity over `fsdp` x intensity over `tp` / `ffn`, the feed-forward width.

    >>> round(critical_tokens_fsdp_tp(h100_node, node, node, ffn=28672))
    674
    """
    return 4 * link_intensity(cluster, fsdp, dtype) * link_intensity(cluster, tp, dtype) / ffn


def best_fsdp_degree(
    cluster: Cluster, fsdp: DeviceGroup, tp: DeviceGroup, ffn: float, batch_tokens: float, devices: int
) -> float:
    """Degree of FSDP on `devices` devices at which transfers of weights take as long as those of activations.

    `fsdp` and `tp` say where the groups lie, `ffn` is the feed-forward width, `batch_tokens` the batch of all devices.

    >>> round(best_fsdp_degree(h100_node, node, node, ffn=28672, batch_tokens=4e6, devices=512))
    267
    """
    weights, activations = (link_intensity(cluster, group) for group in (fsdp, tp))
    return sqrt(batch_tokens / ffn * activations / weights * devices)


# Experts and pipelines.


def critical_expert_ffn(cluster: Cluster, group: DeviceGroup, experts: int, choices: int, dtype: str = "bf16") -> float:
    """Expert width at which expert parallelism over `experts` devices is bound by compute.

    A token takes 4 k D F FLOPs in its k experts (`choices`) and moves D values out and back, to at most k x S / experts
    of the units of S devices at a level, and to all but its own.

    >>> round(critical_expert_ffn(h100_node, nodes, experts=32, choices=4))
    14835
    """
    unit = _slowest(group).below
    moved = (experts - unit) / experts * min(unit * choices / experts, 1.0)
    return link_intensity(cluster, group, dtype) * moved * experts / choices


def pipeline_sends_s(
    tokens: float, embed: int, bytes_per_s: float, microbatches: int, stages: int, dtype: str = "bf16"
) -> float:
    """Seconds of sends on a pipeline's longest path: each microbatch, and the ramp through the stages.

    Args:
        tokens: tokens of a step that one pipeline runs.
        embed: width of the hidden state.
        bytes_per_s: bandwidth from one stage to the next.
        microbatches: microbatches of the step.
        stages: pipeline stages.
        dtype: dtype of the hidden state.

    >>> pipeline_sends_s(4e6, embed=8192, bytes_per_s=400e9, microbatches=32, stages=8)
    0.19456
    """
    once = tokens / microbatches * embed * DTYPE_BYTES[dtype] / bytes_per_s
    return once * (microbatches + stages - 2)


# Sizes.


def tokens_per_device(sequences: int, sequence_tokens: int, devices: int) -> float:
    """Tokens of one optimizer step for each of `devices` devices: `sequences` of `sequence_tokens` each.

    >>> tokens_per_device(256, 8192, 64)
    32768.0
    """
    return sequences * sequence_tokens / devices


def total_memory_bytes(cluster: Cluster) -> float:
    """Device memory of the whole `cluster` (bytes).

    >>> total_memory_bytes(h100_node) / 2**30  # 8 x 80 GiB
    640.0
    """
    return cluster.chips * cluster.chip.memory_bytes


def state_bytes_per_device(parameters: float, bytes_per_parameter: float, shards: int = 1) -> float:
    """Bytes of weights, gradients and optimizer state on one device when they are sharded over `shards` devices.

    `bytes_per_parameter` is their sum for one of the `parameters`: 14 for bf16 weights, fp32 master copies and two fp32
    moments.

    >>> state_bytes_per_device(70e9, 14, shards=64)
    15312500000.0
    """
    return parameters * bytes_per_parameter / shards


def fewest_chips(total_bytes: float, chip: Chip) -> int:
    """Smallest number of chips whose memory together holds `total_bytes`; `chip` says how much one has.

    >>> fewest_chips(70e9 * 14, h100)
    12
    """
    return ceil(total_bytes / chip.memory_bytes)


def largest_parameters(chip: Chip, bytes_per_parameter: float) -> float:
    """Number of parameters whose state one `chip`'s memory holds, at `bytes_per_parameter` bytes each.

    >>> f"{largest_parameters(h100, 14) / 1e9:.1f} billion"
    '6.1 billion'
    """
    return chip.memory_bytes / bytes_per_parameter


def training_s(flops: float, chips: float, chip: Chip, mfu: float, dtype: str = "bf16") -> float:
    """Seconds of a run of `flops` on `chips` chips at a model FLOPs utilization `mfu` of the dense peak in `dtype`.

    >>> f"{training_s(6 * 70e9 * 15e12, 16384, h100, mfu=0.4) / 86400:.1f} days"  # 70 billion parameters, 15e12 tokens
    '11.2 days'
    """
    return flops / (chips * chip.flops_per_s[dtype] * mfu)


def _slowest(group: DeviceGroup) -> GroupLevel:
    assert group.levels, "a roofline of a group needs more than one device"
    return max(group.levels, key=lambda p: 1 / p.unit_bytes_per_s)


def _share(group: DeviceGroup) -> float:
    """(n - 1) / n at the level that the group is bound by."""
    return 1 - 1 / _slowest(group).members
