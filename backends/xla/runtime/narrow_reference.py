"""Reference matmuls in float8 and int8 on one device: inputs are rounded to the low dtype and back, then multiplied in
fp32.

Independent of the emitted code on purpose: no low-precision array reaches a matmul here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from planc.backends.xla.models.hooks import Undivided
from planc.costing.compute.quantize import quantized
from planc.ir.plan import Plan, Quantize

Rounded = Callable[[jax.Array, int], jax.Array]
"""Rounds a matrix to the low dtype, given the dim that the matmul contracts."""
Product = Callable[[jax.Array, jax.Array], jax.Array]
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}


def multiplying_narrow(hooks: Undivided, plan: Plan) -> Undivided:
    """Return `hooks` with a `linear` that quantizes as the sentences of `plan` say, except in the layers that the
    sentences exclude."""
    ops = [op for section in plan.model.ops.values() for op in section]
    sentences = {op.params[0]: q for op in ops if (q := quantized(plan, op)) is not None}

    class Narrow(type(hooks)):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(hooks.__dict__)
            self.layer = 0

        def lookup(self, name: str, table: jax.Array, tokens: jax.Array, /) -> jax.Array:
            self.layer = 0  # a forward begins here
            return super().lookup(name, table, tokens)  # type: ignore[no-any-return]

        def layers(self, block: Any, x: Any, stack: Any, /) -> Any:
            for n in range(len(next(iter(stack.values())))):
                x = block(x, {name: w[n] for name, w in stack.items()})
                self.layer += 1
            return x

        def product(self, name: str, x: jax.Array, w: jax.Array, /) -> jax.Array:
            q = sentences.get(name)
            spared = name.startswith("layers.") and q and any(a <= self.layer < b for a, b in q.kept_layers)
            if q is None or spared:
                return super().product(name, x, w)  # type: ignore[no-any-return]
            made = product_of(q)(x.reshape(-1, x.shape[-1]), w)
            return made.reshape(*x.shape[:-1], -1)

    return Narrow()


def product_of(sentence: Quantize) -> Product:
    """Return a function of x [T, in] and w [out, in] that returns x times w transposed, [T, out]. The operands of this
    matmul and of the two in its backward are rounded as `sentence` says."""
    if sentence.dtype == "int8":
        forward = backward = _rounded("int8", powers=False)
    elif sentence.recipe == "rowwise":
        forward = backward = _rounded("float8_e4m3fn", powers=True)
    else:
        forward, backward = (_rounded(name, powers=False, whole=True) for name in ("float8_e4m3fn", "float8_e5m2"))

    @jax.custom_vjp
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return forward(x, 1) @ forward(w, 1).T

    def gradients(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, w = saved
        return backward(dy, 1) @ forward(w, 0), backward(dy, 0).T @ forward(x, 0)

    product.defvjp(lambda x, w: (product(x, w), (x, w)), gradients)
    return product


def _rounded(dtype: str, *, powers: bool, whole: bool = False) -> Rounded:
    """Return a function that rounds a matrix to `dtype` and back. There is one scale for each vector along the
    contracted dim, or one for the `whole` matrix; with `powers`, scales are powers of two."""

    def rounded(x: jax.Array, summed: int) -> jax.Array:
        over = None if whole else summed
        scale = LARGEST[dtype] / jnp.maximum(jnp.max(jnp.abs(x), axis=over, keepdims=True), 1e-12)
        if powers:
            scale = 2.0 ** jnp.floor(jnp.log2(scale))
        scaled = jnp.round(x * scale) if dtype == "int8" else x * scale
        return scaled.astype(dtype).astype(x.dtype) / scale

    return rounded
