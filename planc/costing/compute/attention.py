"""Seconds of the attention core on one device: a fused kernel, or matmuls with stored scores.

Sources: Dao 2023, FlashAttention-2 (arXiv:2307.08691), for the fused kernel; efficiencies are fitted
(`docs/measured/accuracy.md`).
"""

from __future__ import annotations

from math import prod

from planc.costing.compute.flops import head_widths, local_dim, op_bytes, op_flops
from planc.costing.compute.gemm import gemm_s
from planc.costing.compute.shapes import Gemm
from planc.costing.machine.op_tables import table_s
from planc.costing.machine.rates import dtype_s_per_flop, memory_bytes_per_s, peak_flops_per_s
from planc.ir.attention_kernel import AttentionKernel
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.op_tables import OpTable, table_of
from planc.ir.policy import AMPERE
from planc.ir.probe import attention_flops
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import local_elements
from planc.sharding.recompute import replay

FLASH_BACKWARD = 2.5
"""FLOPs of flash attention's backward relative to its forward: it recomputes the scores (Dao 2023)."""
UNFUSED_BYTES = {False: 9.0, True: 11.0}
"""Bytes moved per score of unfused 16-bit attention between its matmuls, (forward, backward): softmax and dropout read
and write it (dropout also a byte of mask), and their backwards likewise. Each matmul also writes or reads every score
once, which is counted with its arithmetic."""


def attention_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    """Return the seconds of attention (scores, softmax, weighted sum) for one microbatch on one device.

    It is a fused kernel, which stores no scores, or matmuls that do: as in the program of a target
    (`Sharded.attention`), or else as the plan's `attention.core` sentence says.

    Args:
        sharded: the plan with its layouts.
        o: the attention op with its layout.
        chip: the device; its attention efficiency is that of FlashAttention-2 with heads of `USUAL_WIDTH`.
        backward: True for the backward, which does `FLASH_BACKWARD` times the work of the forward.

    >>> seconds = attention_s(sharded, ops["attention.core"], h100, backward=False)
    >>> f"{seconds * 1e6:.0f} us"  # 137 GFLOP at 0.9 of the peak
    '154 us'
    """
    plan, kernel = sharded.plan, sharded.attention
    if kernel is not None and kernel.stores_scores and attention_table(sharded, o, chip, backward=backward) is None:
        return _stored_scores_s(sharded, o, chip, kernel, backward=backward)
    if kernel is None and plan.attention is not None and plan.attention.runs == "unfused":
        return _unfused_s(sharded, o, chip, backward=backward)
    if (table := attention_table(sharded, o, chip, backward=backward)) is not None:
        return _measured_s(sharded, o, chip, table, backward=backward)
    times = FLASH_BACKWARD if backward else 1.0
    peak = peak_flops_per_s(chip, plan.precision.multiplied) / chip.devices
    masked = kernel is not None and kernel.windows_by_mask and o.op.window
    flops = _product_flops(sharded, o, scores_of(sharded, o)) if masked else op_flops(sharded, o)
    if kernel is not None and kernel.pads_values:
        query, value = (sharded.model.sizes[sharded.model.tensor[t].dims[-1]] for t in (o.op.inputs[0], o.op.output))
        flops *= 2 * max(query, value) / (query + value)
    arithmetic = times * flops / (peak * attention_efficiency(sharded, o, chip))
    traffic_s = times * op_bytes(sharded, o) / memory_bytes_per_s(chip)
    repeated_s = repeated_bytes(sharded, o) / memory_bytes_per_s(chip)
    return max(arithmetic, traffic_s) + repeated_s + chip.launch_s * (2 if backward else 1)


def attention_table(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> OpTable | None:
    """Return the table of measured rates of `chip` that applies to attention op `o`, or to its `backward`; None if
    there is none and the formula applies.

    Tables were measured with the default kernel of torch or JAX on whole causal sequences. None applies if the plan of
    `sharded` names a kernel, shards the sequence or has a sliding window, if keys and values differ in width, or if an
    accelerator's program stores the scores.

    >>> attention_table(sharded, ops["attention.core"], h100, backward=False) is None  # no file has one
    True
    """
    plan, kernel = sharded.plan, sharded.attention
    if not chip.tables or o.op.window or o.layout.get("sequence") or (plan.attention and plan.attention.runs):
        return None
    query, value = (sharded.model.sizes[sharded.model.tensor[t].dims[-1]] for t in (o.op.inputs[0], o.op.output))
    if query != value or (kernel is not None and kernel.stores_scores and not chip.hosts_itself):
        return None
    return table_of(chip.tables, "attention_backward" if backward else "attention", plan.precision.multiplied)


def _measured_s(sharded: Sharded, o: OpSharding, chip: Chip, table: OpTable, *, backward: bool) -> float:
    """Return the seconds of attention by `table`, plus those to write repeated keys and values."""
    plan, model = sharded.plan, sharded.model
    times = FLASH_BACKWARD if backward else 1.0
    peak = peak_flops_per_s(chip, plan.precision.multiplied) / chip.devices

    def curve_s(sizes: tuple[float, ...]) -> float:
        reached = min(MOST_EFFICIENT, chip.attention_efficiency * head_share(sizes[3], chip.name))
        return times * attention_flops(sizes) / (peak * reached) + chip.launch_s * (2 if backward else 1)

    sizes = (
        *(local_dim(sharded, o, d) for d in ("batch", "heads")),
        float(plan.batch.sequence_tokens),
        float(model.sizes[model.tensor[o.op.output].dims[-1]]),
    )
    seconds = table_s(table, sizes, work=lambda s: times * attention_flops(s), curve_s=curve_s, units_per_s=peak)
    return seconds + repeated_bytes(sharded, o) / memory_bytes_per_s(chip)


def repeated_bytes(sharded: Sharded, o: OpSharding) -> float:
    """Return the bytes that a device reads and writes in `o` to repeat keys and values for each query head of
    `sharded`. The backward, which sums their gradients, transfers as many. 0 if the kernel supports grouped heads.

    Here 8 query heads share a key head: keys and values of 8,192 tokens are read once and written 8 times.

    >>> repeated_bytes(sharded, ops["attention.core"])
    0.0
    >>> from dataclasses import replace
    >>> apart = replace(sharded, attention=AttentionKernel(repeats_keys=True))
    >>> repeated_bytes(apart, ops["attention.core"]) == 2 * 8192 * 128 * (1 + 8) * 2
    True
    """
    kernel, model = sharded.attention, sharded.model
    if kernel is None or not kernel.repeats(o.op) or "kv_heads" not in model.tensor[o.op.inputs[1]].dims:
        return 0.0
    plan = sharded.plan
    given = [(t, model.tensor[t].dims) for t in o.op.inputs[1:3]]
    read = sum(local_elements(plan, dims, o.needs(t, dims)) for t, dims in given)
    written = read / local_dim(sharded, o, "kv_heads") * local_dim(sharded, o, "heads")
    return (read + written) * DTYPE_BYTES[plan.precision.compute]


KERNELS = {"triton": 0.5, "cudnn": 1.5}
"""Speed of some attention kernels relative to FlashAttention-2: its predecessor in Triton, and cuDNN's, from Hopper on.
On Ampere both use the same instructions, and Transformer Engine takes FlashAttention-2."""
MOST_EFFICIENT = 0.9
EXPONENTIALS = 32
"""Softmax cost per score, as extra head_dim columns: small heads are less efficient."""
EXPONENTIALS_ON = {"a100": 16, "a100_40": 16, "a800": 16, "b200": 64, "gb200": 64}
"""EXPONENTIALS of chips with other ratios of matmul to exponential throughput: a multiprocessor computes 16 per clock,
32 in Blackwell Ultra (CUDA C++ programming guide, arithmetic instructions), against 2048 FLOPs of 16-bit matmuls on an
A100, 4096 on an H100 and 8192 on Blackwell."""
USUAL_WIDTH = 128
"""The head_dim at which a chip's `attention_efficiency` is measured."""


def attention_efficiency(sharded: Sharded, o: OpSharding, chip: Chip) -> float:
    """Return the share of the chip's peak that the plan's attention kernel achieves in `o`, at most `MOST_EFFICIENT`.

    `chip.attention_efficiency` is for FlashAttention-2 with heads of `USUAL_WIDTH`; `KERNELS` has the speed of other
    kernels that `sharded`'s plan may choose, relative to it.

    >>> attention_efficiency(sharded, ops["attention.core"], h100)
    0.9
    """
    plan = sharded.plan
    runs = plan.attention.runs if plan.attention else ""
    speed = 1.0 if runs == "cudnn" and chip.name in AMPERE else KERNELS.get(runs, 1.0)
    shape = head_share(head_widths(sharded.model, o.op) / 2, chip.name)
    return min(MOST_EFFICIENT, chip.attention_efficiency * speed * shape)


def head_share(width: float, chip: str = "") -> float:
    """Return the efficiency of attention with heads of `width` elements on `chip`, relative to heads of `USUAL_WIDTH`.

    >>> head_share(128), round(head_share(64), 3), round(head_share(64, "a100"), 3)
    (1.0, 0.833, 0.9)
    """
    columns = EXPONENTIALS_ON.get(chip, EXPONENTIALS)
    return (1 + columns / USUAL_WIDTH) / (1 + columns / width)


def _stored_scores_s(sharded: Sharded, o: OpSharding, chip: Chip, kernel: AttentionKernel, *, backward: bool) -> float:
    """Return the seconds of attention in a program that stores all scores in memory, masked ones included.

    The backward has four matmuls. It has a fifth, and another softmax, if probabilities were neither saved nor
    recomputed: a block's recompute saves only named tensors, and probabilities have no name.
    """
    scores = scores_of(sharded, o)
    times, score_bytes = 1.0, kernel.forward_bytes
    if backward:
        again = scores_again(sharded, o)
        times = 2.5 if again else 2.0
        score_bytes = kernel.backward_bytes + (kernel.replay_bytes if again else 0.0)
    each_s = dtype_s_per_flop(chip, sharded.plan.precision.multiplied, sharded.stack.matmuls)
    arithmetic_s = times * _product_flops(sharded, o, scores) * each_s
    traffic = score_bytes * scores + times * op_bytes(sharded, o)
    return arithmetic_s + traffic / memory_bytes_per_s(chip) + 2 * times * chip.launch_s


def scores_of(sharded: Sharded, o: OpSharding) -> float:
    """Return the number of attention scores of `o`, masked ones included, that a device of `sharded` computes per
    microbatch.

    In ring attention with a chunk from each end of the sequence per rank, later steps skip half of the scores.

    >>> scores_of(sharded, ops["attention.core"]) == 8 * 8192 * 8192  # 8 of 64 heads
    True
    """
    plan = sharded.plan
    rows = prod(local_dim(sharded, o, d) for d in ("batch", "sequence", "heads"))
    scores = rows * plan.batch.sequence_tokens
    ranks = plan.mesh.size(*o.layout.get("sequence", ()))
    if o.ring and plan.attention is not None and plan.attention.balance == "headtail":
        scores *= (ranks + 1) / (2 * ranks)
    return scores


def scores_again(sharded: Sharded, o: OpSharding) -> bool:
    """True if the backward of attention `o`, which stores its scores, multiplies for them again: nothing saves or
    recomputes them.

    >>> scores_again(sharded, ops["attention.core"])  # `recompute attention.core`
    False
    """
    return bool(o.ring) or o.op.name not in _replayed(sharded, o)


def _product_flops(sharded: Sharded, o: OpSharding, scores: float) -> float:
    return 2.0 * scores * head_widths(sharded.model, o.op)


def _replayed(sharded: Sharded, o: OpSharding) -> tuple[str, ...]:
    """Return the names of the ops that the backward recomputes, in the block of op `o`."""
    kind = next((kind for kind in sharded.model.blocks if o in sharded.ops[kind]), None)
    return replay(sharded.plan, kind).ops if kind is not None else ()


TENSOR_CORE = 8
"""Elements of 16 bits in the 16 bytes to which cuBLAS wants rows aligned: with heads of any other width the batched
matmuls of unfused attention run without tensor cores (12.2 TFLOP/s on an A100 for heads of 140, 132.7 for heads of
128: pytorch issue 83272)."""


def _unfused_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    """Return the seconds of attention without a fused kernel: matmuls, and passes over all scores."""
    plan, model = sharded.plan, sharded.model
    rows, heads = (prod(local_dim(sharded, o, d) for d in dims) for dims in (("sequence",), ("batch", "heads")))
    keys = plan.batch.sequence_tokens
    query, value = (model.sizes[model.tensor[t].dims[-1]] for t in (o.op.inputs[0], o.op.output))
    products = [Gemm(rows, keys, query, heads), Gemm(rows, value, keys, heads)]
    if backward:
        products += [Gemm(rows, query, keys, heads), Gemm(keys, query, rows, heads)]
        products[:2] = [Gemm(rows, keys, value, heads), Gemm(keys, value, rows, heads)]
    aligned = query % TENSOR_CORE == 0 == value % TENSOR_CORE
    one = dtype_s_per_flop(chip, plan.precision.multiplied if aligned else "fp32", sharded.stack.matmuls)
    products_s = sum(gemm_s(g, chip, one, DTYPE_BYTES[plan.precision.compute]) for g in products)
    return products_s + UNFUSED_BYTES[backward] * heads * rows * keys / memory_bytes_per_s(chip) + 2 * chip.launch_s
