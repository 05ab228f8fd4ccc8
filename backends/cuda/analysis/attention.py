"""The kernel of attention that the emitted torch program calls."""

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
"""A plan's word for a kernel of attention, and torch's `SDPBackend`."""

GROUPED = ("flash", "unfused")
"""Kernels that take fewer key heads than query heads: "it currently works only for Flash_attention and math kernel on
CUDA tensor" (torch 2.13, `scaled_dot_product_attention`). Given grouped heads, the choice of a kernel passes the others
over, and ends at the math kernel or an error."""
FUSED = AttentionKernel(windows_by_mask=True, repeats_windowed_keys=True)
"""`scaled_dot_product_attention`: flash, cuDNN or memory-efficient attention, none of which stores a score. A window
of tokens is given to it as a mask, with which it computes every score, and which flash does not take."""


def attention_kernel(sharded: Sharded) -> AttentionKernel | None:
    """torch's fused kernel; None where the plan in `sharded` asks for `attention core as unfused`, which costs what it
    says."""
    chosen = sharded.plan.attention
    runs = chosen.runs if chosen is not None else ""
    if runs == "unfused":
        return None
    ring = chosen is not None and chosen.method == "ring"
    return replace(
        FUSED, pads_values=ring, windows_by_mask=not ring, repeats_keys=runs in KERNELS and runs not in GROUPED
    )


def grouped(model: Model, op: Op) -> bool:
    """True if several query heads of the attention `op` of `model` share a key."""
    return any("kv_heads" in model.tensor[t].dims for t in op.inputs)


def value_padding(model: Model, op: Op) -> int:
    """Elements by which a head's key is wider than its value in the attention `op` of `model`."""
    keys, values = (model.sizes[model.tensor[t].dims[-1]] for t in (op.inputs[1], op.inputs[2]))
    return keys - values
