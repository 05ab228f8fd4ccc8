"""Models the attention kernel that the emitted torch program calls."""

from __future__ import annotations

from dataclasses import replace

from planc.ir.attention_kernel import AttentionKernel
from planc.ir.model import Model, Op
from planc.ir.sharding import Sharded

KERNELS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "unfused": "MATH",
}
"""Names in torch's `SDPBackend` of the attention kernels that a plan can name."""

GROUPED = ("flash", "unfused")
"""Kernels that support grouped-query attention: "it currently works only for Flash_attention and math kernel on CUDA
tensor" (torch 2.13, `scaled_dot_product_attention`). With grouped heads, torch skips the other kernels, and falls back
to the math kernel or raises an error."""
FUSED = AttentionKernel(windows_by_mask=True, repeats_windowed_keys=True)
"""`scaled_dot_product_attention`: flash, cuDNN or memory-efficient attention; none of them stores scores. A sliding
window is passed as a mask, with which the kernel computes every score, and which flash does not support."""


def attention_kernel(sharded: Sharded) -> AttentionKernel | None:
    """Returns the fused attention kernel that torch runs for the plan in `sharded`; None for `attention.core as
    unfused`, which is costed op by op."""
    chosen = sharded.plan.attention
    runs = chosen.runs if chosen is not None else ""
    if runs == "unfused":
        return None
    ring = chosen is not None and chosen.method == "ring"
    return replace(
        FUSED, pads_values=ring, windows_by_mask=not ring, repeats_keys=runs in KERNELS and runs not in GROUPED
    )


def grouped(model: Model, op: Op) -> bool:
    """True if several query heads share a key head in the attention `op` of `model`."""
    return any("kv_heads" in model.tensor[t].dims for t in op.inputs)


def value_padding(model: Model, op: Op) -> int:
    """Returns by how much the head dim of keys exceeds that of values, in the attention `op` of `model`."""
    keys, values = (model.sizes[model.tensor[t].dims[-1]] for t in (op.inputs[1], op.inputs[2]))
    return keys - values
