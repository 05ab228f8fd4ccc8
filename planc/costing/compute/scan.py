"""Seconds, FLOPs and memory traffic of the scan of a state-space layer on one device.

The sequence is split into chunks: matmuls within a chunk, and a state passed from each chunk to the next (Dao and Gu
2024, "Transformers are SSMs", arXiv:2405.21060, section 6). The passes are those of its kernels
(mamba_ssm/ops/triton/ssd_combined.py of state-spaces/mamba, counted from the shapes that each loads and stores), which
achieve a share of the data sheet's memory bandwidth. The share of the forward is from 12.6 million tokens/s of 128
heads of 64 on an H100 (vllm-project/vllm, pull request 27299, 8192 tokens, chunks of 256). The share of the backward is
from whole steps of a model of 48 mixers on A100, H200 and GB200 (state-spaces/mamba, issue 904): their time beyond
planc's seconds for everything else gives 17, 15 and 11 %. No published training run of a framework was used. There is
no data for TPUs.
"""

from __future__ import annotations

from math import prod

from planc.costing.machine.rates import dtype_s_per_flop
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.model import Model
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import local_length


@dataclass(frozen=True)
class Passes:
    """How often the kernels of a forward or backward access each kind of tensor, and their share of the bandwidth."""

    values: int
    """Passes over the heads' values, the outputs of the scan, and the gradients of both."""
    states_in: int
    """Passes over the state inputs (B) and outputs (C) of each group, and the gradients of both."""
    chunk_bytes: int
    """Bytes for the state at the end of each chunk."""
    score_bytes: int
    """Bytes for the scores within a chunk (C times B, token by token), for each group."""
    kernels: int
    """Number of kernels, each with its launch."""
    share: float
    """Achieved share of the data sheet's memory bandwidth."""


FORWARD = Passes(values=5, states_in=8, chunk_bytes=12, score_bytes=8, kernels=6, share=0.38)
"""The convolution reads and writes; then the states of chunks, passing them on, the matmuls within chunks, the
output."""
BACKWARD = Passes(values=16, states_in=22, chunk_bytes=34, score_bytes=24, kernels=16, share=0.15)
"""The convolution, the states and the matmuls are recomputed; then the gradients of the states, passing them back, of
values, of both factors of the states and of the matmuls, of the step sizes, and those of the convolution."""
BACKWARD_FLOPS = 3.0
"""FLOPs of the backward as a multiple of the forward: two for each matmul, and the recomputed forward."""


def scan_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool = False) -> float:
    """Return the seconds of scan op `o` for one microbatch on one device, forward or `backward`: the longer of matmuls
    and memory traffic, plus launches. `sharded` has the local sizes, `chip` the rates.

    >>> [f"{scan_s(mamba, scan, h100, backward=back) * 1e3:.2f} ms" for back in (False, True)]
    ['1.48 ms', '11.08 ms']
    """
    passes = BACKWARD if backward else FORWARD
    flops = scan_flops(sharded, o) * (BACKWARD_FLOPS if backward else 1.0)
    traffic_s = scan_bytes(sharded, o, backward=backward) / (passes.share * chip.memory_bandwidth_bytes_per_s)
    traffic_s *= chip.devices
    arithmetic_s = flops * dtype_s_per_flop(chip, sharded.plan.precision.multiplied)
    return max(arithmetic_s, traffic_s) + passes.kernels * chip.launch_s


def scan_flops(sharded: Sharded, o: OpSharding) -> float:
    """Return the forward FLOPs of scan op `o` on one device for one microbatch; `sharded` has the local sizes.

    A token's values are added to the state and read from it: 2 FLOPs each per state element. Within a chunk, a token
    attends to half of the other tokens on average, and each group has a matmul for the scores.

    >>> f"{scan_flops(mamba, scan) / 1e9:.1f} GFLOP"  # 16384 tokens x (4096 x (4 x 128 + 128) + 8 x 2 x 128 x 128)
    '47.2 GFLOP'
    """
    tokens, values, groups = _local(sharded, o)
    state, chunk = sharded.model.sizes["ssm_state"], sharded.model.sizes["ssm_chunk"]
    return tokens * (values * (4.0 * state + chunk) + groups * 2.0 * chunk * state)


def scan_bytes(sharded: Sharded, o: OpSharding, *, backward: bool = False) -> float:
    """Return the memory traffic (bytes) of scan op `o` on one device for one microbatch, in its forward or its
    `backward`; `sharded` has the local sizes.

    >>> f"{scan_bytes(mamba, scan, backward=True) / scan_bytes(mamba, scan):.2f}"  # times the forward's
    '2.96'
    """
    tokens, values, groups = _local(sharded, o)
    state, chunk = sharded.model.sizes["ssm_state"], sharded.model.sizes["ssm_chunk"]
    size = DTYPE_BYTES[sharded.plan.precision.compute]
    passes = BACKWARD if backward else FORWARD
    each = size * (passes.values * values + passes.states_in * groups * state)
    return tokens * (each + passes.chunk_bytes * values * state / chunk + passes.score_bytes * groups * chunk)


def model_scan_flops(model: Model) -> float:
    """Return the forward FLOPs per token of a scan of `model` as MFU counts them: writing and reading each head's
    state.

    >>> model_scan_flops(mamba.model) == 2 * 2 * 64 * 64 * 128  # heads x width x state
    True
    """
    return 4.0 * prod(model.sizes[d] for d in ("ssm_heads", "ssm_head_dim", "ssm_state"))


def _local(sharded: Sharded, o: OpSharding) -> tuple[float, float, float]:
    """Return the number of tokens, of elements of all heads' values, and of groups on one device."""
    dims = ("batch", "sequence", "ssm_heads", "ssm_head_dim", "ssm_groups")
    batch, sequence, heads, width, groups = (local_length(sharded.plan, d, o.layout.get(d, ())) for d in dims)
    return batch * sequence, heads * width, groups
