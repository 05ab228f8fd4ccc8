"""`jax.lax.ragged_all_to_all` by its definition, for virtual devices: XLA has none for CPUs; and `jax.lax.empty`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def by_gathers(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: tuple[str, ...],
) -> jax.Array:
    """Every rank's rows from each of `input_offsets`, `send_sizes` of them, to `output_offsets` of that rank's output.

    All of it is gathered, and each rank takes what is meant for it. Rows that `recv_sizes` does not announce are
    poison.
    """
    me = jax.lax.axis_index(axis_name)
    given = (input_offsets, send_sizes, output_offsets)
    starts, sizes, lies = (jax.lax.all_gather(numbers, axis_name)[:, me] for numbers in given)
    place = jnp.arange(len(output))
    for sender, rows in enumerate(jax.lax.all_gather(operand, axis_name)):
        within = place - lies[sender]
        mine = (within >= 0) & (within < sizes[sender])
        row = rows.at[starts[sender] + within].get(mode="fill", fill_value=0)
        row = jnp.where(sizes[sender] == recv_sizes[sender], row, jnp.nan)
        output = jnp.where(mine.reshape(-1, *[1] * (rows.ndim - 1)), row, output)
    return output


def poison(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """`jax.lax.empty` at its worst: not one row that nobody sends may reach a result."""
    return jnp.full(shape, jnp.nan, dtype)
