"""Dtypes of state between uses. A step widens what it reads, computes in fp32 and rounds what it keeps."""

from __future__ import annotations

from planc.ir.collective import DTYPE_BYTES
from planc.ir.plan import NOUNS, Noun, Plan

JAX_DTYPE = {"fp32": "jnp.float32", "bf16": "jnp.bfloat16"}


def narrow_state(plan: Plan) -> bool:
    """True if some noun of `plan` is kept in another dtype than fp32."""
    return any(plan.store_dtype(noun) != "fp32" for noun in NOUNS)


def number_bytes(plan: Plan, noun: Noun) -> int:
    """Bytes of one number of a `noun` between uses."""
    return DTYPE_BYTES[plan.store_dtype(noun)]
