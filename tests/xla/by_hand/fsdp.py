"""By hand: parameters, gradients and AdamW's state divided over four devices; four microbatches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.xla.by_hand import llama

MICROBATCHES = 4
LAST, FIRST = P(None, "fsdp"), P("fsdp")
SPECS = {
    "tok_embeddings.weight": LAST,
    "layers.*.attention_norm.weight": P(None, "fsdp"),
    "layers.*.attention.wq.weight": P(None, "fsdp"),
    "layers.*.attention.wk.weight": P(None, None, "fsdp"),
    "layers.*.attention.wv.weight": P(None, None, "fsdp"),
    "layers.*.attention.wo.weight": P(None, "fsdp"),
    "layers.*.ffn_norm.weight": P(None, "fsdp"),
    "layers.*.feed_forward.w1.weight": P(None, None, "fsdp"),
    "layers.*.feed_forward.w3.weight": P(None, None, "fsdp"),
    "layers.*.feed_forward.w2.weight": P(None, "fsdp"),
    "norm.weight": FIRST,
    "output.weight": LAST,
}
ROWS = P("fsdp", None, None)


def build_mesh() -> Mesh:
    return jax.make_mesh((4,), ("fsdp",), (AxisType.Auto,))


def whole(weight: jax.Array) -> jax.Array:
    return with_sharding_constraint(weight, P())


Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def block(x: jax.Array, layer: dict[str, Any], attention: Attention = llama.attention) -> tuple[jax.Array, None]:
    w = {name: whole(value) for name, value in llama.block_of(layer).items()}
    y = llama.norm(x, w["attention_norm"])
    q, k, v = (y @ w[f"attention.{name}"].T for name in ("wq", "wk", "wv"))
    x = with_sharding_constraint(x + attention(q, k, v) @ w["attention.wo"].T, ROWS)
    y = llama.norm(x, w["ffn_norm"])
    y = jax.nn.silu(y @ w["feed_forward.w1"].T) * (y @ w["feed_forward.w3"].T)
    return with_sharding_constraint(x + y @ w["feed_forward.w2"].T, ROWS), None


def loss_fn(
    params: dict[str, Any], tokens: jax.Array, targets: jax.Array, attention: Attention = llama.attention
) -> jax.Array:
    x = with_sharding_constraint(whole(params["tok_embeddings.weight"])[tokens], ROWS)
    layers = {name: w for name, w in params.items() if name.startswith("layers")}
    x, _ = jax.lax.scan(jax.checkpoint(partial(block, attention=attention), prevent_cse=False), x, layers)
    x = llama.norm(x, whole(params["norm.weight"]))
    return llama.cross_entropy(x @ whole(params["output.weight"]).T, targets)


def build(
    mesh: Mesh,
    params: dict[str, np.ndarray],
    loss_fn: Callable[..., jax.Array] = loss_fn,
    specs: dict[str, P] = SPECS,
    microbatches: int = MICROBATCHES,
) -> tuple[Any, Any]:
    """The divided state, and `step(state, tokens, targets) -> (state, loss)` on [microbatches, sequences, S]."""
    state, jitted = step_of(mesh, params, loss_fn, specs, microbatches)
    where, held = jax.tree.map(lambda leaf: leaf.sharding, state)
    placed = {name: jax.device_put(params[name], where[name]) for name in params}
    return (placed, jax.jit(llama.optimizer().init, out_shardings=held)(placed)), jitted


def step_of(
    mesh: Mesh,
    params: dict[str, Any],
    loss_fn: Callable[..., jax.Array] = loss_fn,
    specs: dict[str, P] = SPECS,
    microbatches: int = MICROBATCHES,
) -> tuple[Any, Any]:
    """The shapes of the divided state, and the step of `build`; `params` may be shapes too."""
    optimizer, where = llama.optimizer(), {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    moments = jax.eval_shape(optimizer.init, params)
    held = jax.tree_util.tree_map_with_path(
        lambda path, _: where.get(getattr(path[-1], "key", ""), NamedSharding(mesh, P())), moments
    )
    where = {name: where[name] for name in params}

    def step(state: Any, tokens: jax.Array, targets: jax.Array) -> tuple[Any, jax.Array]:
        params, moments = state

        def accumulate(total: Any, batch: Any) -> tuple[Any, None]:
            loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
            grads = {name: with_sharding_constraint(g, specs[name]) for name, g in grads.items()}
            return jax.tree.map(jnp.add, total, (loss, grads)), None

        zeros = {name: with_sharding_constraint(jnp.zeros_like(p), specs[name]) for name, p in params.items()}
        total, _ = jax.lax.scan(accumulate, (jnp.zeros(()), zeros), (tokens, targets))
        loss, grads = jax.tree.map(lambda x: x / microbatches, total)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    rows = NamedSharding(mesh, P(None, "fsdp"))
    out = ((where, held), NamedSharding(mesh, P()))
    jitted = jax.jit(step, in_shardings=((where, held), rows, rows), out_shardings=out, donate_argnums=0)

    def shape(leaf: Any, place: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    return jax.tree.map(shape, (params, moments), (where, held)), jitted


def shaped(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(MICROBATCHES, -1, rows.shape[-1])
