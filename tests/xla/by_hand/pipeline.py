"""By hand: two stages of a pipeline, each with its state divided over two devices, gathered once a step.

The scheme is that of MaxText: inputs wait spread over the stages, and outputs take their places.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.xla.by_hand import fsdp, llama

MICROBATCHES = 4
SPECS = {name: P("pp", *spec[1:]) if name.startswith("layers") else spec for name, spec in fsdp.SPECS.items()}
USED = {name: P("pp") if name.startswith("layers") else P() for name in SPECS}
ROWS, SPREAD = P("fsdp", None, None), P(("fsdp", "pp"), None, None)


def build_mesh() -> Mesh:
    return jax.make_mesh((2, 2), ("pp", "fsdp"), (AxisType.Auto,) * 2)


def block(x: jax.Array, layer: dict[str, Any]) -> tuple[jax.Array, None]:
    w = llama.block_of(layer)
    y = llama.norm(x, w["attention_norm"])
    q, k, v = (y @ w[f"attention.{name}"].T for name in ("wq", "wk", "wv"))
    x = with_sharding_constraint(x + llama.attention(q, k, v) @ w["attention.wo"].T, ROWS)
    y = llama.norm(x, w["ffn_norm"])
    y = jax.nn.silu(y @ w["feed_forward.w1"].T) * (y @ w["feed_forward.w3"].T)
    return with_sharding_constraint(x + y @ w["feed_forward.w2"].T, ROWS), None


def stages(layers: dict[str, Any], queue: jax.Array) -> jax.Array:
    """On each stage: its layers and its share of the microbatches."""
    stage, slots = jax.lax.axis_index("pp"), queue.shape[0]
    run = jax.checkpoint(block, prevent_cse=False)

    def tick(carry: Any, t: jax.Array) -> tuple[Any, None]:
        x, queue = carry
        held = queue[t % slots]
        y, _ = jax.lax.scan(run, jnp.where(stage == 0, held, x), layers)
        left = jax.lax.ppermute(held, "pp", [(1, 0)])
        queue = queue.at[t % slots].set(jnp.where(stage == 1, y, left))
        return (jax.lax.ppermute(y, "pp", [(0, 1)]), queue), None

    (_, queue), _ = jax.lax.scan(tick, (queue[0], queue), jnp.arange(MICROBATCHES + 1))
    return jnp.roll(queue, -1, axis=0)  # the first result went to the second place


def loss_fn(params: dict[str, Any], tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """tokens and targets: [ranks, microbatches, sequences, S], the first dim over fsdp."""
    layers = {name: w for name, w in params.items() if name.startswith("layers")}
    tokens, targets = (t.reshape(-1, t.shape[-1]) for t in (tokens, targets))
    x = with_sharding_constraint(fsdp.whole(params["tok_embeddings.weight"])[tokens], SPREAD)
    x = jnp.moveaxis(x.reshape(2, MICROBATCHES, -1, *x.shape[1:]), 1, 0).reshape(MICROBATCHES, -1, *x.shape[1:])
    queue = with_sharding_constraint(x, P("pp", *ROWS))
    pipeline = jax.shard_map(stages, in_specs=(P("pp"), P("pp")), out_specs=P("pp"), axis_names={"pp"})
    x = pipeline(layers, queue)
    x = jnp.moveaxis(x.reshape(MICROBATCHES, 2, -1, *x.shape[2:]), 1, 0).reshape(-1, *x.shape[2:])
    x = llama.norm(with_sharding_constraint(x, SPREAD), fsdp.whole(params["norm.weight"]))
    return llama.cross_entropy(x @ fsdp.whole(params["output.weight"]).T, targets)


def build(mesh: Mesh, params: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """The divided state, and `step(state, tokens, targets) -> (state, loss)`."""
    optimizer, where = llama.optimizer(), {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    held = jax.tree_util.tree_map_with_path(
        lambda path, _: where.get(getattr(path[-1], "key", ""), NamedSharding(mesh, P())),
        jax.eval_shape(optimizer.init, params),
    )
    placed = {name: jax.device_put(params[name], where[name]) for name in params}
    state = (placed, jax.jit(optimizer.init, out_shardings=held)(placed))

    def step(state: Any, tokens: jax.Array, targets: jax.Array) -> tuple[Any, jax.Array]:
        params, moments = state
        used = {name: with_sharding_constraint(w, USED[name]) for name, w in params.items()}
        loss, grads = jax.value_and_grad(loss_fn)(used, tokens, targets)
        grads = {name: with_sharding_constraint(g, SPECS[name]) for name, g in grads.items()}
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    rows = NamedSharding(mesh, P("fsdp"))
    out = ((where, held), NamedSharding(mesh, P()))
    return state, jax.jit(step, in_shardings=((where, held), rows, rows), out_shardings=out, donate_argnums=0)


def shaped(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(2, MICROBATCHES, -1, rows.shape[-1])
