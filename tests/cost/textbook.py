"""Closed forms of published exercises that planc itself never asks, from the functions that it does ask.

Source where none is named: the public scaling book.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import ceil, prod, sqrt

from planc.costing.machine.collective_time import (
    collective_s,
    gather_bytes_per_s,
)
from planc.costing.machine.roofline import HALF_BYTES, critical_tokens_per_device, link_intensity, peak
from planc.costing.machine.topology import DeviceGroup, GroupLevel
from planc.ir.collective import DTYPE_BYTES, NetworkOp
from planc.ir.hardware import Chip, Cluster
from planc.ir.model import Model


def vector_ops_per_s(chip: Chip, clock_hz: float) -> float:
    """fp32 operations of one `chip` per second at `clock_hz` cycles a second: one an fp32 lane and cycle."""
    return vector_lanes(chip) * clock_hz


def stream_critical_tokens(chip: Chip, dtype: str = "bf16") -> float:
    """Tokens of a matmul in `dtype` that hide its weights coming from the host memory of `chip`: 2 FLOPs for each
    weight.
    """
    return peak(chip, dtype) * chip.devices / chip.host_bandwidth_bytes_per_s * DTYPE_BYTES[dtype] / HALF_BYTES


def largest_data_parallel(cluster: Cluster, group: DeviceGroup, batch_tokens: float, dtype: str = "bf16") -> float:
    """Devices over which a batch of `batch_tokens` stays bound by compute, with links like those of `group`."""
    return batch_tokens / critical_tokens_per_device(cluster, group, dtype=dtype)


def critical_ffn(cluster: Cluster, group: DeviceGroup, degree: float, dtype: str = "bf16") -> float:
    """Feed-forward width at which tensor parallelism over `degree` devices is bound by compute.

    A token takes 4 D F / degree FLOPs and moves 2 x 2 D bytes (gather before, scatter after), so F = rate x seconds per
    byte x degree.
    """
    return link_intensity(cluster, group, dtype) * degree


def best_fsdp_degree(
    cluster: Cluster, fsdp: DeviceGroup, tp: DeviceGroup, ffn: float, batch_tokens: float, devices: int
) -> float:
    """Degree of FSDP on `devices` devices at which transfers of weights take as long as those of activations.

    `fsdp` and `tp` say where the groups lie, `ffn` is the feed-forward width, `batch_tokens` the batch of all devices.
    """
    weights, activations = (link_intensity(cluster, group) for group in (fsdp, tp))
    return sqrt(batch_tokens / ffn * activations / weights * devices)


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
    """
    once = tokens / microbatches * embed * DTYPE_BYTES[dtype] / bytes_per_s
    return once * (microbatches + stages - 2)


def tokens_per_device(sequences: int, sequence_tokens: int, devices: int) -> float:
    """Tokens of one optimizer step for each of `devices` devices: `sequences` of `sequence_tokens` each."""
    return sequences * sequence_tokens / devices


def total_memory_bytes(cluster: Cluster) -> float:
    """Device memory of the whole `cluster` (bytes)."""
    return cluster.chips * cluster.chip.memory_bytes


def state_bytes_per_device(parameters: float, bytes_per_parameter: float, shards: int = 1) -> float:
    """Bytes of weights, gradients and optimizer state on one device when they are sharded over `shards` devices.

    `bytes_per_parameter` is their sum for one of the `parameters`: 14 for bf16 weights, fp32 master copies and two fp32
    moments.
    """
    return parameters * bytes_per_parameter / shards


def fewest_chips(total_bytes: float, chip: Chip) -> int:
    """Smallest number of chips whose memory together holds `total_bytes`; `chip` says how much one has."""
    return ceil(total_bytes / chip.memory_bytes)


def largest_parameters(chip: Chip, bytes_per_parameter: float) -> float:
    """Number of parameters whose state one `chip`'s memory holds, at `bytes_per_parameter` bytes each."""
    return chip.memory_bytes / bytes_per_parameter


def training_s(flops: float, chips: float, chip: Chip, mfu: float, dtype: str = "bf16") -> float:
    """Seconds of a run of `flops` on `chips` chips at a model FLOPs utilization `mfu` of the dense peak in `dtype`."""
    return flops / (chips * chip.flops_per_s[dtype] * mfu)


def group_bytes_per_s(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> float:
    """Bytes of all members' buffers together done per second: `algorithm_bytes_per_s` times the members of `group`."""
    return group.size * algorithm_bytes_per_s(op, buffer_bytes, group)


def tree_gather_bytes_per_s(group: DeviceGroup) -> float:
    """Bytes of a buffer that the slowest level of `group` lets a group gather per second.

    Source: public scaling book, gpus.md, cross-node collectives. A group of one device has no limit (infinity).
    """
    return min((gather_bytes_per_s(p) for p in group.levels), default=float("inf"))


def multicast_ingress_bytes(buffer_bytes: float, group: DeviceGroup, level: str) -> tuple[float, float]:
    """Bytes that come into one switch of a level in an all-gather through switches that copy: from below, from above.

    What the units below hold of `buffer_bytes` comes up once, the rest of the buffer comes down once; the sum is the
    buffer, however many devices `group` has. Source: public scaling book, gpus.md, quiz 4 question 1. Raises ValueError
    where the group does not cross `level`.
    """
    crossed = group_level(group, level)
    share = crossed.below * crossed.members / group.size
    return buffer_bytes * share, buffer_bytes * (1 - share)


def time_ratio(one: NetworkOp, other: NetworkOp, array_bytes: float, group: DeviceGroup) -> float:
    """Ratio of the seconds of `one` collective to those of the `other`, for the same array of `array_bytes` over
    `group`.

    Source: public scaling book, sharding.md.
    """
    return array_s(one, array_bytes, group) / array_s(other, array_bytes, group)


def latency_bound_bytes(level: GroupLevel) -> float:
    """Size below which a hop of `level` waits longer than it sends: latency times the bandwidth of one link.

    Source: public scaling book, sharding.md, whose number for a TPU v5e link this is:
    """
    links = sum(r.links for r in level.rings) or 1
    return level.latency_s * level.bytes_per_s / links


def torus_send_s(buffer_bytes: float, cluster: Cluster, source: tuple[int, ...], target: tuple[int, ...]) -> float:
    """Seconds from one chip of a torus to another: over one link of every dimension in which they differ.

    Args:
        buffer_bytes: bytes sent.
        cluster: the machine: the torus's shape, which dimensions wrap, and its links.
        source: coordinates of the sending chip, one a dimension.
        target: coordinates of the receiving chip.

    Source: public scaling book, tpus.md, question 5.
    """
    link = cluster.link
    ways = [_hops_between(*at) for at in zip(source, target, cluster.shape, cluster.wrap, strict=True)]
    ports = sum(1 for hops in ways if hops)
    if not ports:
        return 0.0
    return buffer_bytes / (ports * link.bandwidth_bytes_per_s * link.efficiency) + sum(ways) * link.latency_s


def egress_bytes_per_s(cluster: Cluster) -> float:
    """Bytes per second that one node of `cluster`, or one slice of a torus, can send into the network."""
    level = cluster.levels[0]
    return cluster.hosts_per_node * level.bandwidth_bytes_per_s / level.oversubscription


def parameter_share(model: Model, some: Iterable[str], of: Iterable[str]) -> float:
    """Share of the parameters that match one of the globs `of` that also count among those that match `some`."""
    return parameters_of(model, *some) / parameters_of(model, *of)


def activation_bytes(model: Model, tensors: Iterable[str], tokens: float, dtype: str = "bf16") -> float:
    """Bytes of these activations of every block for `tokens` tokens, nothing divided.

    `tensors` are their names in `model`, `dtype` is what they are stored in. Raises KeyError for a tensor that the
    model does not have.
    """
    dims = (model.tensor[name].dims for name in tensors)
    widths = [prod(model.sizes[d] for d in each if d not in ("batch", "sequence")) for each in dims]
    return tokens * sum(widths) * model.layers * DTYPE_BYTES[dtype]


def kv_cache_bytes_per_token(model: Model, element_bytes: int) -> int:
    """Bytes of keys and values that one token leaves behind in all layers of `model`, at `element_bytes` bytes a
    number.
    """
    return 2 * model.layers * model.sizes["kv_heads"] * model.sizes["head_dim"] * element_bytes


def parameters_of(model: Model, *patterns: str) -> int:
    """Number of parameters of `model` whose names match one of the globs (`patterns`), all layers together.

    `*` in a name is the layer's number.
    """
    return sum(
        model.elements(p) * model.copies(p) for p in model.params if any(fnmatchcase(p.name, glob) for glob in patterns)
    )


def algorithm_bytes_per_s(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> float:
    """Bytes of the buffer done per second of one call: what NCCL's tests print as "algbw".

    `op`, `buffer_bytes` and `group` are those of `collective_s`.
    """
    return buffer_bytes / collective_s(op, buffer_bytes, group)


def group_level(group: DeviceGroup, level: str) -> GroupLevel:
    """The level called `level` that `group` crosses.

    Raises ValueError when it crosses no such `level`.
    """
    for crossed in group.levels:
        if crossed.name == level:
            return crossed
    raise ValueError(f"the group does not cross {level}, only {', '.join(p.name for p in group.levels)}")


def array_s(op: NetworkOp, array_bytes: float, group: DeviceGroup) -> float:
    """Seconds of an `op` over `group` for an array of `array_bytes` that the group holds once: an all-to-all moves each
    member's part of it, all others the whole.
    """
    return collective_s(op, array_bytes / group.size if op == "all_to_all" else array_bytes, group)


def _hops_between(source: int, target: int, length: int, wrapped: bool) -> int:
    straight = abs(source - target)
    return min(straight, length - straight) if wrapped else straight


def vector_lanes(chip: Chip) -> int:
    """fp32 lanes of one `chip`; 0 when its hardware file does not say."""
    return chip.cores * chip.core_lanes
