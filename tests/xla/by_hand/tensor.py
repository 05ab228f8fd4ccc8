"""By hand: two devices share each matmul and, between blocks, the sequence; two groups store the state divided."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from tests.xla.by_hand import fsdp, llama

COLUMN, ROW = P(None, "tp", "fsdp"), P(None, "fsdp", "tp")
SPECS = {
    "tok_embeddings.weight": P("tp", "fsdp"),
    "layers.*.attention_norm.weight": P(None, "fsdp"),
    "layers.*.attention.wq.weight": COLUMN,
    "layers.*.attention.wk.weight": COLUMN,
    "layers.*.attention.wv.weight": COLUMN,
    "layers.*.attention.wo.weight": ROW,
    "layers.*.ffn_norm.weight": P(None, "fsdp"),
    "layers.*.feed_forward.w1.weight": COLUMN,
    "layers.*.feed_forward.w3.weight": COLUMN,
    "layers.*.feed_forward.w2.weight": ROW,
    "norm.weight": P("fsdp"),
    "output.weight": P("tp", "fsdp"),
}
USED = {name: P(*(axis if axis == "tp" else None for axis in spec)) for name, spec in SPECS.items()}
RESIDUAL, WHOLE, INNER = P("fsdp", "tp", None), P("fsdp", None, None), P("fsdp", None, "tp")
MICROBATCHES = 2


def build_mesh() -> Mesh:
    return jax.make_mesh((2, 2), ("fsdp", "tp"), (AxisType.Auto,) * 2)


def used(name: str, weight: jax.Array) -> jax.Array:
    spec = USED[name]
    return with_sharding_constraint(weight, P(*spec[len(spec) - weight.ndim :]))


def column(x: jax.Array, weight: jax.Array) -> jax.Array:
    return with_sharding_constraint(x @ weight.T, INNER)


def row(x: jax.Array, weight: jax.Array) -> jax.Array:
    # The gradient is gathered once for both products of the backward, rather than moved for each.
    return with_sharding_constraint(with_sharding_constraint(x @ weight.T, WHOLE), RESIDUAL)


def block(x: jax.Array, layer: dict[str, Any]) -> tuple[jax.Array, None]:
    w = llama.block_of({name: used(name, value) for name, value in layer.items()})
    y = with_sharding_constraint(llama.norm(x, w["attention_norm"]), RESIDUAL)
    y = with_sharding_constraint(y, WHOLE)
    q, k, v = (column(y, w[f"attention.{name}"]) for name in ("wq", "wk", "wv"))
    x = with_sharding_constraint(x + row(llama.attention(q, k, v), w["attention.wo"]), RESIDUAL)
    y = with_sharding_constraint(llama.norm(x, w["ffn_norm"]), RESIDUAL)
    y = with_sharding_constraint(y, WHOLE)
    y = jax.nn.silu(column(y, w["feed_forward.w1"])) * column(y, w["feed_forward.w3"])
    return with_sharding_constraint(x + row(y, w["feed_forward.w2"]), RESIDUAL), None


def loss_fn(params: dict[str, Any], tokens: jax.Array, targets: jax.Array) -> jax.Array:
    table = used("tok_embeddings.weight", params["tok_embeddings.weight"])
    # Summed as it is looked up, and divided then: at once XLA exchanges the ranks of fsdp and tp.
    x = with_sharding_constraint(with_sharding_constraint(table[tokens], WHOLE), RESIDUAL)
    layers = {name: w for name, w in params.items() if name.startswith("layers")}
    x, _ = jax.lax.scan(jax.checkpoint(block, prevent_cse=False), x, layers)
    x = with_sharding_constraint(llama.norm(x, used("norm.weight", params["norm.weight"])), RESIDUAL)
    x = with_sharding_constraint(x, WHOLE)
    return llama.cross_entropy(column(x, used("output.weight", params["output.weight"])), targets)


def build(mesh: Mesh, params: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return fsdp.build(mesh, params, loss_fn, SPECS, MICROBATCHES)


def shaped(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(MICROBATCHES, -1, rows.shape[-1])
