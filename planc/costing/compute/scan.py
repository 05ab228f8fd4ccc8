"""Seconds, FLOPs and memory traffic of the scan of a state-space layer on one device.

The sequence is cut into chunks: products within a chunk, and a state from each chunk to the next (Dao and Gu 2024,
"Transformers are SSMs", arXiv:2405.21060, section 6). The passes are those of its kernels
(mamba_ssm/ops/triton/ssd_combined.py of state-spaces/mamba, read for the shapes that each loads and stores), which
reach a share of the data sheet's memory rate. That of the forward is by 12.6 million tokens/s of 128 heads of 64 on an
H100 (vllm-project/vllm, pull request 27299, 8192 tokens, chunks of 256). That of the backward is by whole steps of a
model of 48 mixers on A100, H200 and GB200 (state-spaces/mamba, issue 904): what they take beyond planc's seconds of
everything else makes 17, 15 and 11 %. No published training run of a framework's was used. On TPUs nothing was found.
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
    """Times that the kernels of one direction go over each kind of tensor: `values` and `states_in` in the compute
    dtype, `chunk_bytes` and `score_bytes` in bytes an element, since these are kept in fp32 and in 16 bits."""

    values: int
    """Passes over the heads' values, what the scan makes of them, and the gradients of both."""
    states_in: int
    """Those over what is written to the states and what reads them, for each group, and the gradients of both."""
    chunk_bytes: int
    """The state at the end of each chunk."""
    score_bytes: int
    """Products of what writes and what reads, token by token within a chunk, for each group."""
    kernels: int
    """Kernels, each with its launch."""
    share: float
    """The share of the data sheet's memory rate that they reach."""


FORWARD = Passes(values=5, states_in=8, chunk_bytes=12, score_bytes=8, kernels=6, share=0.38)
"""The convolution reads and writes; then states of chunks, their passing on, products within chunks, the output."""
BACKWARD = Passes(values=16, states_in=22, chunk_bytes=34, score_bytes=24, kernels=16, share=0.15)
"""The convolution, the states and the products run again; then the gradients of the states, their passing back, of
values, of both factors of the states and of the products, of the steps, and those of the convolution."""
BACKWARD_FLOPS = 3.0
"""FLOPs of the backward in units of the forward: two for each product, and the forward again."""


def scan_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool = False) -> float:
    """Seconds of scan op `o` for one microbatch on one device, in its forward or its `backward`: the longer of its
    products at the rate of matmuls and its bytes at the share of the memory rate that its kernels reach, and launches.
    `sharded` has the local sizes, `chip` the rates.

    >>> [f"{scan_s(mamba, scan, h100, backward=back) * 1e3:.2f} ms" for back in (False, True)]
    ['1.48 ms', '11.08 ms']
    """
    passes = BACKWARD if backward else FORWARD
    flops = scan_flops(sharded, o) * (BACKWARD_FLOPS if backward else 1.0)
    traffic_s = scan_bytes(sharded, o, backward=backward) / (passes.share * chip.memory_bandwidth_bytes_per_s)
    traffic_s *= chip.devices
    arithmetic_s = flops * dtype_s_per_flop(chip, sharded.plan.precision.compute)
    return max(arithmetic_s, traffic_s) + passes.kernels * chip.launch_s


def scan_flops(sharded: Sharded, o: OpSharding) -> float:
    """Forward FLOPs of scan op `o` on one device for one microbatch; `sharded` has the local sizes.

    A token's values go into the state and come out of it, 2 FLOPs each for every number of the state; within a chunk
    half of the earlier tokens are weighed, and the weights of a chunk are products for each group.

    >>> f"{scan_flops(mamba, scan) / 1e9:.1f} GFLOP"  # 16384 tokens x (4096 x (4 x 128 + 128) + 8 x 2 x 128 x 128)
    '47.2 GFLOP'
    """
    tokens, values, groups = _local(sharded, o)
    state, chunk = sharded.model.sizes["ssm_state"], sharded.model.sizes["ssm_chunk"]
    return tokens * (values * (4.0 * state + chunk) + groups * 2.0 * chunk * state)


def scan_bytes(sharded: Sharded, o: OpSharding, *, backward: bool = False) -> float:
    """Bytes that scan op `o` moves through the memory of one device for one microbatch, in its forward or its
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
    """Forward FLOPs of a token in one scan as MFU counts them: into the state of each head of `model` and out of it.

    >>> model_scan_flops(mamba.model) == 2 * 2 * 64 * 64 * 128  # heads x width x state
    True
    """
    return 4.0 * prod(model.sizes[d] for d in ("ssm_heads", "ssm_head_dim", "ssm_state"))


def _local(sharded: Sharded, o: OpSharding) -> tuple[float, float, float]:
    """Tokens, numbers of all heads' values, and groups, on one device."""
    dims = ("batch", "sequence", "ssm_heads", "ssm_head_dim", "ssm_groups")
    batch, sequence, heads, width, groups = (local_length(sharded.plan, d, o.layout.get(d, ())) for d in dims)
    return batch * sequence, heads * width, groups
