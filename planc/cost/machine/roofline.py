"""When a layout is bound by compute and when by communication, in closed form.

Tokens per device, feed-forward widths and group sizes at which the transfers of a layer take as long as its
matmuls. These are the rules of thumb of the public scaling book (https://jax-ml.github.io/scaling-book,
roofline, training and gpus chapters); a plan's own step time comes from `planc.cost.step.step_time`, which needs none
of them. Rates are per device. `planc.cost.machine.topology.at_peak` takes efficiencies and latencies out.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import Literal

from planc.cost.machine.collective_time import limit_s
from planc.cost.machine.rates import memory_bytes_per_s
from planc.cost.machine.topology import Phase, Span
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip, Cluster

HALF_BYTES = 2
"""bf16, the dtype that these rules assume for weights and activations on the wire."""


def peak(chip: Chip, dtype: str = "bf16") -> float:
    """FLOP/s of one device in `dtype`, with the chip's matmul efficiency."""
    return chip.flops_per_s[dtype] * chip.matmul_efficiency / chip.devices


# One chip.


def chip_intensity(chip: Chip, dtype: str = "bf16") -> float:
    """FLOP per byte of device memory at which a matmul takes as long as its memory traffic."""
    return peak(chip, dtype) / memory_bytes_per_s(chip)


def matmul_s(chip: Chip, m: int, k: int, n: int, dtype: str = "bf16") -> float:
    """Seconds of an [m, k] x [k, n] matmul: the slower of its 2mkn FLOPs and its three arrays."""
    traffic = (m * k + k * n + m * n) * DTYPE_BYTES[dtype]
    return max(2.0 * m * k * n / peak(chip, dtype), traffic / memory_bytes_per_s(chip)) + chip.launch_s


def vector_ops_per_s(chip: Chip, clock_hz: float) -> float:
    """fp32 operations of one chip at this clock, one an fp32 lane and cycle."""
    return vector_lanes(chip) * clock_hz


def vector_lanes(chip: Chip) -> int:
    """fp32 lanes of one chip; 0 when its hardware file does not say."""
    return chip.cores * chip.core_lanes


def stream_s(read_bytes: float, chips: int, chip: Chip, source: Literal["memory", "host"] = "memory") -> float:
    """Seconds for `chips` chips to read `read_bytes` once, each its part, from their memory or their hosts'."""
    rate = memory_bytes_per_s(chip) * chip.devices if source == "memory" else chip.host_bandwidth_bytes_per_s
    return read_bytes / chips / rate


def stream_critical_tokens(chip: Chip, dtype: str = "bf16") -> float:
    """Tokens of a matmul that hide its weights coming from host memory: 2 FLOPs for each 2-byte weight."""
    return peak(chip, dtype) * chip.devices / chip.host_bandwidth_bytes_per_s * DTYPE_BYTES[dtype] / HALF_BYTES


# Data parallelism.


def link_intensity(cluster: Cluster, span: Span, dtype: str = "bf16") -> float:
    """FLOP per byte gathered over `span`, as for a group of many: compute rate times seconds per byte."""
    return peak(cluster.chip, dtype) * limit_s("all_gather", 1.0, span)


def critical_tokens_per_device(
    cluster: Cluster, span: Span, *, divided: int = 1, exact: bool = False, dtype: str = "bf16"
) -> float:
    """Tokens on each device at which data parallelism (DP, or FSDP) over `span` is bound by compute.

    A layer of P weights takes 4P FLOPs a token backward and moves 2P bytes twice (reduce-scatter and
    gather), so tokens / device = rate x seconds per byte. `divided`: the ways in which other axes divide
    the weights: each device then moves only its part. `exact` counts (n - 1) / n.
    """
    many = link_intensity(cluster, span, dtype) / divided
    return many * _share(span) if exact else many


def critical_batch_tokens(
    cluster: Cluster, span: Span, *, divided: int = 1, exact: bool = False, dtype: str = "bf16"
) -> float:
    """The smallest batch, in tokens, that keeps `span` and the axes that divide the weights bound by compute."""
    each = critical_tokens_per_device(cluster, span, divided=divided, exact=exact, dtype=dtype)
    return each * span.size * divided


def largest_data_parallel(cluster: Cluster, span: Span, batch_tokens: float, dtype: str = "bf16") -> float:
    """Devices over which this batch stays bound by compute, with links like those of `span`."""
    return batch_tokens / critical_tokens_per_device(cluster, span, dtype=dtype)


# Tensor parallelism.


def critical_ffn(cluster: Cluster, span: Span, degree: float, dtype: str = "bf16") -> float:
    """Feed-forward width at which tensor parallelism of degree `degree` is bound by compute.

    A token takes 4 D F / degree FLOPs and moves 2 x 2 D bytes (gather before, scatter after), so
    F = rate x seconds per byte x degree.
    """
    return link_intensity(cluster, span, dtype) * degree


def largest_tp(cluster: Cluster, span: Span, ffn: float, *, exact: bool = False, dtype: str = "bf16") -> float:
    """Degree of tensor parallelism, over links like those of `span`, that stay bound by compute.

    `exact` counts that at degree Y in units of S devices only (Y - S) / Y of the buffer crosses the level.
    """
    many = ffn / link_intensity(cluster, span, dtype)
    return many + _slowest(span).below if exact else many


# Both together.


def critical_tokens_fsdp_tp(cluster: Cluster, fsdp: Span, tp: Span, ffn: float, dtype: str = "bf16") -> float:
    """Tokens on each device at which FSDP and tensor parallelism, divided at their best, are bound by compute.

    The weights' transfers fall with the degree of tensor parallelism and the activations' rise with them; at
    the best division both take as long: 4 x intensity over fsdp x intensity over tp / F.
    """
    return 4 * link_intensity(cluster, fsdp, dtype) * link_intensity(cluster, tp, dtype) / ffn


def best_fsdp_degree(cluster: Cluster, fsdp: Span, tp: Span, ffn: float, batch_tokens: float, devices: int) -> float:
    """Degree of FSDP on `devices` devices at which transfers of weights take as long as those of activations."""
    weights, activations = (link_intensity(cluster, span) for span in (fsdp, tp))
    return sqrt(batch_tokens / ffn * activations / weights * devices)


# Experts and pipelines.


def critical_expert_ffn(cluster: Cluster, span: Span, experts: int, choices: int, dtype: str = "bf16") -> float:
    """Expert width at which expert parallelism over `experts` ways is bound by compute.

    A token takes 4 k D F FLOPs in its k experts and moves D values out and back, to at most
    k x S / experts of the units of S devices at a level, and to all but its own.
    """
    unit = _slowest(span).below
    moved = (experts - unit) / experts * min(unit * choices / experts, 1.0)
    return link_intensity(cluster, span, dtype) * moved * experts / choices


def pipeline_sends_s(
    tokens: float, embed: int, bytes_per_s: float, microbatches: int, stages: int, dtype: str = "bf16"
) -> float:
    """Seconds of sends on a pipeline's longest path: each microbatch, and the ramp through the stages."""
    once = tokens / microbatches * embed * DTYPE_BYTES[dtype] / bytes_per_s
    return once * (microbatches + stages - 2)


# Sizes.


def tokens_per_device(sequences: int, sequence_tokens: int, devices: int) -> float:
    """Tokens of one optimizer step for each device."""
    return sequences * sequence_tokens / devices


def total_memory_bytes(cluster: Cluster) -> float:
    """Device memory of the whole machine."""
    return cluster.chips * cluster.chip.memory_bytes


def state_bytes_per_device(parameters: float, bytes_per_parameter: float, shards: int = 1) -> float:
    """Weights, gradients and optimizer state of one device when they are sharded over `shards` devices."""
    return parameters * bytes_per_parameter / shards


def fewest_chips(total_bytes: float, chip: Chip) -> int:
    """Smallest number of chips whose memory together holds `total_bytes`."""
    return ceil(total_bytes / chip.memory_bytes)


def largest_parameters(chip: Chip, bytes_per_parameter: float) -> float:
    """Parameters whose state one chip's memory holds."""
    return chip.memory_bytes / bytes_per_parameter


def training_s(flops: float, chips: float, chip: Chip, mfu: float, dtype: str = "bf16") -> float:
    """Seconds of a run of `flops` at a model FLOPs utilization `mfu` of the dense peak."""
    return flops / (chips * chip.flops_per_s[dtype] * mfu)


def _slowest(span: Span) -> Phase:
    assert span.phases, "a roofline of a group needs more than one device"
    return max(span.phases, key=lambda p: 1 / p.unit_bytes_per_s)


def _share(span: Span) -> float:
    """(n - 1) / n at the level that the group is bound by."""
    return 1 - 1 / _slowest(span).members
