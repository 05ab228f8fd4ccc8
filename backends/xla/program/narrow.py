"""Matmuls in float8 and int8: each product casts both operands anew, and multiplies the result by their scales."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.names import (
    COMPUTE,
    GRADS,
    NARROW,
    RECIPES,
    SUMMED,
    _pattern,
    _wide_linear,
    weight,
)

_COMPUTE_PARAMS: ContextVar[tuple[str, ...]] = ContextVar("compute_params", default=())


@contextmanager
def _multiplying_in_compute(names: tuple[str, ...]) -> Iterator[None]:
    """Context for tracing layers: these parameters are multiplied in COMPUTE."""
    before = _COMPUTE_PARAMS.set(names)
    try:
        yield
    finally:
        _COMPUTE_PARAMS.reset(before)


def _recipe(name: str) -> str:
    """The recipe of a parameter in the current layer; "" for COMPUTE."""
    return (NARROW | dict.fromkeys(_COMPUTE_PARAMS.get(), "")).get(_pattern(name), "")


def linear(name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...] = (-1,), contracted: int = 1) -> jax.Array:
    """x [..., in] times the parameter `name`, w [out, in]: [..., out]; quantized if NARROW says so.

    With `out` (-1, D) the result is [..., heads, D]; if two dims are `contracted`, x is [..., heads, D].
    """
    recipe = _recipe(name) if FACTS.some_layers_wide else NARROW.get(_pattern(name), "")
    product = {"": _wide_linear}.get(recipe, functools.partial(_narrow_linear, recipe))
    y = product(name, x.reshape(*x.shape[:-contracted], -1), w)
    return y.reshape(*y.shape[:-1], *out)


def _used(name: str, w: jax.Array) -> jax.Array:
    """The weight in the compute dtype, in its layout of use."""
    return weight(name, w.astype(COMPUTE))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _narrow_linear(recipe: str, name: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """x [..., in] times the parameter `name`, w [out, in]: [..., out].

    Both operands of each matmul are cast to a narrow dtype, and the result is multiplied by their scales.
    A custom_vjp has no forward mode: jax.jvp and jax.jacfwd of the loss raise.
    """
    return _narrow_linear_forward(recipe, name, x, w)[0]


def _narrow_linear_forward(
    recipe: str, name: str, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    cast, _ = RECIPES[recipe]
    (rows, by_row), (columns, by_column) = cast(x, (-1,)), cast(_used(name, w), (1,))
    y = jnp.einsum("...i,oi->...o", rows, columns, preferred_element_type=COMPUTE)
    return (y * by_row * by_column[:, 0]).astype(COMPUTE), (x, w)


def _narrow_linear_backward(
    recipe: str, name: str, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    (x, w), (cast, cast_gradient) = saved, RECIPES[recipe]
    (rows, by_row), (columns, by_column) = cast_gradient(dy, (-1,)), cast(_used(name, w), (0,))
    dx = jnp.einsum("...o,oi->...i", rows, columns, preferred_element_type=COMPUTE)
    dx = (dx * by_row * by_column[0]).astype(x.dtype)
    tokens = tuple(range(x.ndim - 1))
    (rows, by_row), (columns, by_column) = cast_gradient(dy, tokens), cast(x, tokens)
    dtype = jnp.float32 if FACTS.reduce == "fp32" else jnp.bfloat16
    dw = jnp.einsum("...o,...i->oi", rows, columns, preferred_element_type=dtype)
    if FACTS.sums_stated:
        dw = with_sharding_constraint(dw, SUMMED[_pattern(name)])
    dw = with_sharding_constraint(dw, GRADS[_pattern(name)]) * by_row.reshape(-1, 1) * by_column.reshape(-1)
    return dx, dw.astype(w.dtype)


_narrow_linear.defvjp(_narrow_linear_forward, _narrow_linear_backward)


def _float8_rowwise(x: jax.Array, summed: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """x in float8, and its inverse scales, shared along the contracted dims `summed`."""
    largest = jnp.max(jnp.abs(x), axis=summed, keepdims=True).astype(jnp.float32)
    scale = float(jnp.finfo(jnp.float8_e4m3fn).max) / jnp.maximum(largest, 1e-12)
    power = jnp.ldexp(jnp.full_like(scale, 0.5), jnp.frexp(scale)[1])  # next lower power of two: exact
    return (x.astype(jnp.float32) * power).astype(jnp.float8_e4m3fn), 1 / power


def _float8_tensorwise(
    x: jax.Array, summed: tuple[int, ...], dtype: Any = jnp.float8_e4m3fn
) -> tuple[jax.Array, jax.Array]:
    """x in float8, and its inverse scale, one for the tensor."""
    largest = jnp.max(jnp.abs(x), keepdims=True).astype(jnp.float32)
    scale = float(jnp.finfo(dtype).max) / jnp.maximum(largest, 1e-12)
    return (x.astype(jnp.float32) * scale).astype(dtype), 1 / scale


def _int8_rowwise(x: jax.Array, summed: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """x in int8, and its inverse scales, shared along the contracted dims `summed`."""
    largest = jnp.max(jnp.abs(x), axis=summed, keepdims=True).astype(jnp.float32)
    scale = jnp.iinfo(jnp.int8).max / jnp.maximum(largest, 1e-12)
    return jnp.round(x.astype(jnp.float32) * scale).astype(jnp.int8), 1 / scale
