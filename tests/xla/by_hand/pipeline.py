"""By hand: two stages of a pipeline, each with its state divided over two devices, gathered once a step.

One forward and one backward in each tick (1F1B), on both stages in lockstep: inputs of layers wait for their backward.
Rows before the first stage and after the last one are spread over the stages.
"""

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

from tests.xla.by_hand import fsdp, llama

MICROBATCHES, WAITING = 4, 3
SPECS = {name: P("pp", *spec[1:]) if name.startswith("layers") else spec for name, spec in fsdp.SPECS.items()}
USED = {name: P("pp") if name.startswith("layers") else P() for name in SPECS}
ROWS, SPREAD = P("fsdp", None, None), P("fsdp", "pp", None)
HEAD = ("norm.weight", "output.weight")


def build_mesh() -> Mesh:
    return jax.make_mesh((2, 2), ("pp", "fsdp"), (AxisType.Auto,) * 2)


def block(x: jax.Array, layer: dict[str, Any]) -> jax.Array:
    w = llama.block_of(layer)
    y = llama.norm(x, w["attention_norm"])
    q, k, v = (y @ w[f"attention.{name}"].T for name in ("wq", "wk", "wv"))
    x = with_sharding_constraint(x + llama.attention(q, k, v) @ w["attention.wo"].T, ROWS)
    y = llama.norm(x, w["ffn_norm"])
    y = jax.nn.silu(y @ w["feed_forward.w1"].T) * (y @ w["feed_forward.w3"].T)
    return with_sharding_constraint(x + y @ w["feed_forward.w2"].T, ROWS)


def forward(layers: dict[str, Any], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A stage's result, and the inputs of its layers."""
    return jax.lax.scan(lambda x, layer: (block(x, layer), x), x, layers)


def backward(layers: dict[str, Any], inputs: jax.Array, dy: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    """The gradients of a stage's input and of its layers, each of which is run again."""
    return jax.lax.scan(lambda dy, at: jax.vjp(block, *at)[1](dy), dy, (inputs, layers), reverse=True)


def head(params: dict[str, Any], share: jax.Array, targets: jax.Array) -> jax.Array:
    """One of two shares of a microbatch's loss."""
    y = llama.norm(share, params["norm.weight"])
    return llama.cross_entropy(y @ params["output.weight"].T, targets) / 2


def on_a_device(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """`function` of one device's rows."""
    return jax.shard_map(function, in_specs=ROWS, out_specs=ROWS, axis_names={"fsdp"}, check_vma=False)(x)


def together(share: jax.Array) -> jax.Array:
    """The rows of a microbatch, of which each stage has a share."""
    return on_a_device(partial(jax.lax.all_gather, axis_name="pp", axis=1, tiled=True), share)


def share_of(x: jax.Array, owner: int) -> jax.Array:
    """This stage's share of the rows that the stage `owner` has."""

    def mine(x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x.reshape(len(x), 2, -1, x.shape[-1]), "pp", 1, 1)[:, owner]

    return on_a_device(mine, x)


def number_of(tick: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The microbatch that comes in a tick, and whether there is one."""
    return jnp.clip(tick, 0, MICROBATCHES - 1), (tick >= 0) & (tick < MICROBATCHES)


def stage(layers: dict[str, Any], ends: dict[str, Any], shares: jax.Array, targets: jax.Array) -> tuple[Any, ...]:
    """On each stage: its layers, and its share of what enters the first one and of the targets."""
    rank, shares, targets = jax.lax.axis_index("pp"), shares[:, :, 0], targets[:, :, 0]

    def ahead(now: Any, t: jax.Array) -> tuple[Any, jax.Array]:
        x, saved, shares = now["x"], now["saved"], now["shares"]
        n, valid = number_of(t - rank)
        y, inputs = forward(layers, jnp.where(rank == 0, together(shares[number_of(t)[0]]), x))
        saved = saved.at[n % WAITING].set(jnp.where(valid, inputs, saved[n % WAITING]))
        return {**now, "x": jax.lax.ppermute(y, "pp", [(0, 1)]), "saved": saved}, y

    def back(now: Any, t: jax.Array, dy: jax.Array) -> Any:
        n, valid = number_of(t - 2 + rank)
        dx, new = backward(layers, now["saved"][n % WAITING], dy)
        grads = jax.tree.map(lambda total, g: total + jnp.where(valid, g, 0), now["layers"], new)
        n, valid = number_of(t - 2)
        left = jnp.where(valid, share_of(dx, 0), now["shares"][n])
        home = jax.lax.ppermute(dx, "pp", [(1, 0)])
        return {**now, "layers": grads, "dx": home, "shares": now["shares"].at[n].set(left)}

    def tick(t: jax.Array, now: Any) -> Any:
        now, y = ahead(now, t)
        loss, (new, dy) = jax.value_and_grad(head, (0, 1))(ends, share_of(y, 1), targets[number_of(t - 1)[0]])
        now = {**now, "loss": now["loss"] + loss, "ends": jax.tree.map(jnp.add, now["ends"], new)}
        return back(now, t, jnp.where(rank == 1, together(dy), now["dx"]))

    x = jnp.zeros((shares.shape[1], 2 * shares.shape[2], shares.shape[3]))
    saved = jnp.zeros((WAITING, len(next(iter(layers.values()))), *x.shape))
    zeros = jax.tree.map(jnp.zeros_like, {**layers, **ends})
    zeros = {name: with_sharding_constraint(z, P(*without_stage(SPECS[name]))) for name, z in zeros.items()}
    now = {"x": x, "dx": x, "saved": saved, "shares": shares, "loss": jnp.zeros(())}
    now |= {"layers": {name: zeros[name] for name in layers}, "ends": {name: zeros[name] for name in ends}}
    now, _ = ahead(now, jnp.int32(0))
    now = jax.lax.fori_loop(1, 5, tick, now)
    now = back(now, jnp.int32(5), now["dx"])
    loss, of_ends = jax.lax.psum((now["loss"], now["ends"]), "pp")
    return loss, now["layers"], of_ends, now["shares"][:, :, None]


def without_stage(spec: P) -> tuple[str | None, ...]:
    return tuple(None if axis == "pp" else axis for axis in spec)


def loss_and_grads(used: dict[str, Any], tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    """tokens and targets: [ranks, microbatches, sequences, S], the first dim over fsdp."""
    table, length = "tok_embeddings.weight", tokens.shape[-1]

    def shares(rows: jax.Array) -> jax.Array:
        """[sequences, S, ...] -> [microbatches, sequences of one, stages, S / 2, ...]"""
        each = jnp.moveaxis(rows.reshape(2, MICROBATCHES, -1, *rows.shape[1:]), 1, 0)
        each = each.reshape(MICROBATCHES, -1, *rows.shape[1:])
        each = with_sharding_constraint(each, P(None, *SPREAD[: rows.ndim]))
        return each.reshape(*each.shape[:2], 2, -1, *rows.shape[2:])

    def entering(table: jax.Array) -> jax.Array:
        return shares(with_sharding_constraint(table[tokens.reshape(-1, length)], SPREAD))

    x, of_table = jax.vjp(entering, used[table])
    layers, ends = {n: w for n, w in used.items() if n.startswith("layers")}, {n: used[n] for n in HEAD}
    spread = P(None, None, "pp")
    pipeline = jax.shard_map(
        stage,
        in_specs=(P("pp"), P(), spread, spread),
        out_specs=(P(), P("pp"), P(), spread),
        axis_names={"pp"},
        check_vma=False,
    )
    loss, of_layers, of_ends, dx = pipeline(layers, ends, x, shares(targets.reshape(-1, length)))
    grads = {table: of_table(dx)[0], **of_layers, **of_ends}
    return loss / MICROBATCHES, {name: g / MICROBATCHES for name, g in grads.items()}


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
        loss, grads = loss_and_grads(used, tokens, targets)
        grads = {name: with_sharding_constraint(grads[name], SPECS[name]) for name in params}
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    rows = NamedSharding(mesh, P("fsdp"))
    out = ((where, held), NamedSharding(mesh, P()))
    return state, jax.jit(step, in_shardings=((where, held), rows, rows), out_shardings=out, donate_argnums=0)


def shaped(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(2, MICROBATCHES, -1, rows.shape[-1])
