"""Low-precision matmuls: the ops in a `quantize` sentence, their rate, and the casts of their inputs.

The casts are those of Transformer Engine (https://docs.nvidia.com/deeplearning/transformer-engine).
"""

from __future__ import annotations

from planc.costing.compute.shapes import Gemm
from planc.costing.machine.rates import dtype_s_per_flop, memory_bytes_per_s
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.model import Op
from planc.ir.plan import Plan, Quantize
from planc.ir.policy import BLACKWELL
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.recompute import names_op
from planc.sharding.stage_assignment import microbatches_each


def quantized(plan: Plan, op: Op) -> Quantize | None:
    """Return the `quantize` sentence of `plan` that applies to op `op`; None for an op in the compute dtype."""
    return _quantized(plan, op) if op.kind == "matmul" and plan.quantize else None


@cached_on(lambda plan, op: (plan.cache, (op.name, op.region)))
def _quantized(plan: Plan, op: Op) -> Quantize | None:
    for q in plan.quantize:
        if any(names_op(w, op) for w in q.ops) and not any(names_op(w, op) for w in q.kept):
            return q
    return None


def s_per_flop(sharded: Sharded, op: Op, chip: Chip) -> float:
    """Return the seconds per FLOP of op `op` at the rate that the stack's library achieves in its dtype on `chip`; a
    mean over layers if the plan in `sharded` quantizes only some of them.

    >>> f"{1 / s_per_flop(sharded, ops['ffn.gate'].op, h100) / 1e12:.0f} TFLOP/s"  # nothing is quantized: bf16
    '989 TFLOP/s'
    """
    plan, library = sharded.plan, sharded.stack.matmuls
    wide = dtype_s_per_flop(chip, plan.precision.multiplied, library)
    chosen = quantized(plan, op)
    if chosen is None:
        return wide
    kept = sum(end - begin for begin, end in chosen.kept_layers) / plan.model.layers
    return kept * wide + (1 - kept) * dtype_s_per_flop(chip, chosen.dtype, library)


def product_dtype(plan: Plan, op: Op) -> str:
    """Return the dtype of the matmuls of `op` in `plan`; "" if only some layers are quantized.

    >>> product_dtype(plan, ops["ffn.gate"].op)
    'bf16'
    """
    chosen = quantized(plan, op)
    if chosen is None:
        return plan.precision.multiplied
    return "" if chosen.kept_layers else chosen.dtype


HALF_A_BYTE = 0.5
"""Bytes of a float4."""
TILED = ("blockwise",)
"""Recipes with a scale per tile and a default tile size."""


def casts_s(sharded: Sharded, o: OpSharding, gemm: Gemm, input_share: float, chip: Chip, *, backward: bool) -> float:
    """Return the seconds of casting the operands of one quantized matmul to its low-precision dtype.

    Transformer Engine writes two copies, one transposed, since low-precision matmuls support only one layout. A scale
    for a whole tensor needs an extra pass that reads it. The forward casts the input once for all matmuls that read it,
    and the weight once a step or after each gather. The backward casts the gradient of the output.

    A norm may compute the amax of its output, which saves the extra pass (Transformer Engine, pull request 2013; not
    Megatron's gated activation). Blackwell's float8 matmuls with tensor scales support any layout, so one copy is
    written (Transformer Engine's `is_non_tn_fp8_gemm_supported`).

    Args:
        sharded: the plan with its layouts.
        o: the matmul op.
        gemm: the op's matmul on one device.
        input_share: the op's share of the cast of its input, if several matmuls read one input.
        chip: the device: its memory bandwidth and launch time.
        backward: True for the casts of the backward.

    >>> from planc.costing.compute.gemm import gemm_of
    >>> o = ops["ffn.gate"]
    >>> casts_s(sharded, o, gemm_of(sharded, o), 0.5, h100, backward=False)  # the plan quantizes nothing
    0.0
    """
    chosen = quantized(sharded.plan, o.op)
    if chosen is None:
        return 0.0
    wide, narrow = DTYPE_BYTES[sharded.plan.precision.compute], DTYPE_BYTES.get(chosen.dtype, HALF_A_BYTE)
    tiled = bool(chosen.tile) or chosen.recipe in TILED
    fuses = not tiled and chosen.dtype == "float8" and sharded.stack.policy.fuses_amax
    written = (1 if fuses and chip.name in BLACKWELL else 2) * narrow
    reads = 1 if tiled or (fuses and not backward and _follows_norm(sharded, o.op)) else 2
    if backward:
        moved = gemm.m * gemm.n * (reads * wide + written)
    else:
        weight = gemm.k * gemm.n / _microbatches_a_weight(sharded, o)
        moved = input_share * gemm.m * gemm.k * (reads * wide + written)
        moved += weight * ((1 if tiled else 2) * wide + written)
    kept = sum(end - begin for begin, end in chosen.kept_layers) / sharded.plan.model.layers
    return (1 - kept) * (gemm.groups * moved / memory_bytes_per_s(chip) + chip.launch_s)


def _follows_norm(sharded: Sharded, op: Op) -> bool:
    return any(o.kind == "norm" and o.output == op.inputs[0] for ops in sharded.model.ops.values() for o in ops)


def _microbatches_a_weight(sharded: Sharded, o: OpSharding) -> float:
    """Return how many microbatches use one cast of the weight: 1 if it is gathered for each, else all of a step."""
    plan = sharded.plan
    again = plan.gather_per != "step" and any(sharded.param[p].stored["params"] for p in o.op.params)
    return 1.0 if again else float(microbatches_each(plan))
