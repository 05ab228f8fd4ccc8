"""By hand: `fsdp`, with attention by JAX's own Pallas kernel for TPUs, splash attention, on each device's sequences."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.xla.by_hand import fsdp, llama

HEAD_DIM, BLOCK = 128, 128
SIZES = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute", "block_q_dq")
SIZES += ("block_kv_dq",)

build_mesh, shaped = fsdp.build_mesh, fsdp.shaped


def on_a_device(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of [B, S, heads, E] over [B, S, kv_heads, E]."""
    tokens, heads = q.shape[1:3]
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([splash_attention.CausalMask((tokens, tokens))] * heads),
        block_sizes=splash_attention.BlockSizes(**dict.fromkeys(SIZES, BLOCK)),
        head_shards=1,
        q_seq_shards=1,
        interpret=jax.sharding.get_abstract_mesh().abstract_device.platform == "cpu",
    )
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q * HEAD_DIM**-0.5, k, v))
    return jnp.swapaxes(jax.vmap(kernel)(q, k, v), 1, 2)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    q, k, v = (x.reshape(*x.shape[:-1], -1, HEAD_DIM) for x in (q, k, v))
    each = jax.shard_map(on_a_device, in_specs=P("fsdp"), out_specs=P("fsdp"), check_vma=False)
    mixed = each(llama.rope(q), llama.rope(k), v)
    return mixed.reshape(*mixed.shape[:2], -1)


loss_fn = partial(fsdp.loss_fn, attention=attention)


def build(mesh: Mesh, params: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """The divided state and the step, as those of `fsdp`."""
    return fsdp.build(mesh, params, loss_fn)


def step_of(mesh: Mesh, shapes: dict[str, jax.ShapeDtypeStruct]) -> tuple[Any, Any]:
    """The shapes of the divided state and the step, for devices that are not there."""
    return fsdp.step_of(mesh, shapes, loss_fn)
