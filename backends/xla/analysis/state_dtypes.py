"""Dtypes of stored state. A step casts it to fp32, computes, and rounds the result."""

from __future__ import annotations

from planc.ir.collective import DTYPE_BYTES
from planc.ir.plan import NOUNS, Noun, Plan

JAX_DTYPE = {"fp32": "jnp.float32", "bf16": "jnp.bfloat16", "fp16": "jnp.float16"}


def narrow_state(plan: Plan) -> bool:
    """True if parameters, gradients or optimizer state of `plan` are stored in a dtype other than fp32."""
    return any(plan.store_dtype(noun) != "fp32" for noun in NOUNS)


def number_bytes(plan: Plan, noun: Noun) -> int:
    """Return the bytes of one stored element of `noun` (params, grads or optimizer)."""
    return DTYPE_BYTES[plan.store_dtype(noun)]
