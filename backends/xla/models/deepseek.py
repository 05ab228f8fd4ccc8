"""The DeepSeek family in JAX: latent attention, dense first layers, then routed experts and a shared expert.

Shapes as in llama; with N nope_dim and P rope_dim, a head's queries and keys have N + P elements and its values D.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from planc.backends.xla.models import llama, moe
from planc.backends.xla.models.llama import Half, Params, build_feed_forward, rms_norm, shapes
from planc.backends.xla.models.moe import BlockWithPicks, routed

if TYPE_CHECKING:
    from planc.backends.xla.models.hooks import Hooks
    from planc.ir.model import Model, Section

__all__ = ["build_logits", "build_loss", "shapes"]

MODULE = "layers.*.attention"


def _block(model: Model, hooks: Hooks, kind: Section, balance: float) -> BlockWithPicks:
    attention = build_latent_attention(model, hooks)
    if routed(model, kind):
        return moe.build_block(model, hooks, attention, balance)
    return moe.dense(llama.build_block(model, hooks, attention, build_feed_forward(hooks)))


build_loss, build_logits = moe.builders(_block)


def build_latent_attention(model: Model, hooks: Hooks) -> Half:
    """Return multi-head latent attention: [B, S, E] -> [B, S, E] (DeepSeek-V2, section 2.1).

    All heads share the rotary part of the keys, [B, S, P]. Without `q_lora` queries come from one projection.
    """
    sizes = model.sizes
    nope, rope = sizes["nope_dim"], sizes["rope_dim"]

    def linear(part: str, tensor: str, x: jax.Array, layer: Params, width: int = 0) -> jax.Array:
        """Project `x` with the weight `part`; with `width`, the output has heads of this width."""
        out = (-1, width) if width else (-1,)
        name = f"{MODULE}.{part}.weight"
        return hooks.constrain(tensor, hooks.linear(name, x, layer[name], out))

    def latent(letter: str, x: jax.Array, layer: Params) -> jax.Array:
        name = f"{MODULE}.{letter}_norm.weight"
        made = linear(f"w{letter}_a", f"mla.{letter}_latent", x, layer)
        return hooks.constrain(f"mla.{letter}_normed", rms_norm(made, hooks.weight(name, layer[name]), model.norm_eps))

    def queries(x: jax.Array, layer: Params) -> jax.Array:
        if "q_lora" in sizes:
            return linear("wq_b", "attention.q", latent("q", x, layer), layer, nope + rope)
        return linear("wq", "attention.q", x, layer, nope + rope)

    def attention(x: jax.Array, layer: Params) -> jax.Array:
        angles = llama.rotary_angles(hooks.positions(x.shape[1]), rope, model.rope_theta)
        still, turning = jnp.split(queries(x, layer), [nope], axis=-1)
        q = jnp.concatenate((still, llama.rotate(turning, angles)), axis=-1)
        q = hooks.constrain("attention.q_rotated", q)
        normed = latent("kv", x, layer)
        k_rope = linear("wk_rope", "mla.k_rope", x, layer)
        k = linear("wk_b", "mla.k_nope", normed, layer, nope)
        v = linear("wv_b", "attention.v", normed, layer, sizes["head_dim"])
        # Angles for these rows: those of a shared key may be sharded over more ranks than those of queries.
        angles = llama.rotary_angles(hooks.positions(x.shape[1]), rope, model.rope_theta)
        turned = hooks.constrain("mla.k_rotated", llama.rotate(k_rope[:, :, None], angles)[:, :, 0])
        shared = jnp.broadcast_to(turned[:, :, None], (*k.shape[:-1], rope))
        k = hooks.constrain("attention.k", jnp.concatenate((k, shared), axis=-1))
        mixed = hooks.constrain("attention.mixed", hooks.attend(q, k, v))
        name = f"{MODULE}.wo.weight"
        return hooks.constrain("attention.out", hooks.linear(name, mixed, layer[name], (-1,), 2))

    return attention
