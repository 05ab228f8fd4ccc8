"""Plan llama3_70b_v5p: the layout and training step of llama3_70b in JAX.

Mesh     fsdp 64 x tp 4 = 256 devices, outermost first
Cluster  tpu_v5p(4x8x8)
Batch    256 x 8192 tokens microbatch 4

    mesh, optimizer = build_mesh(), adamw()
    state = init_state(params, optimizer, mesh)
    step = build_train_step(loss_fn, optimizer, mesh, params)
    state, metrics = step(state, tokens, targets, lr)

`loss_fn(params, tokens, targets)` is yours. In it, call `constrain(name, x)` on activations,
`linear`, `lookup` or `weight` on parameters and `layers` on the block (`remat` without a stack); names are
those of the tables below. `positions` gives each row's index; only `attend` mixes rows.
Written by planc for JAX 0.10 from llama3_70b_v5p.plan: edit the plan, not this file.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import mesh_utils
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, Mesh, NamedSharding, use_abstract_mesh
from jax.sharding import PartitionSpec as P

JAX = tuple(int(number) for number in jax.__version__.split(".")[:2])
if JAX != (0, 10):
    warnings.warn(f"compiled for jax 0.10 and never tried on {jax.__version__}", stacklevel=2)

Loss = Callable[[Any, jax.Array, jax.Array], jax.Array]

MESH = {"fsdp": 64, "tp": 4}  # outermost first; llama3_70b_v5p.plan:5  mesh fsdp 64 > tp 4
DATA_PARALLEL = 64  # ranks that divide the batch; llama3_70b_v5p.plan:6  use fsdp over fsdp
MICROBATCH = 256  # sequences on all of them; llama3_70b_v5p.plan:3  batch 256 x 8192 tokens microbatch 4
BATCH = P("fsdp", None)  # tokens and targets, [sequences, tokens of each]
COMPUTE = jnp.bfloat16  # llama3_70b_v5p.plan:10  compute bf16 reduce fp32

BLOCK = 512  # block size of attention (rows and keys); as MaxText has it
BLOCK_SIZES: dict[str, Any] = {
    **dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dq", "block_kv_dq"), BLOCK),
    **dict.fromkeys(("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"), BLOCK),
}

# One layer's layout by parameter name, [out, in] for a weight; `*` stands for its number.
# Parameters in use.
# llama3_70b_v5p.plan:7  use tp over tp
USED = {
    "tok_embeddings.weight": P("tp", None),
    "layers.*.attention_norm.weight": P(None),
    "layers.*.attention.wq.weight": P("tp", None),
    "layers.*.attention.wk.weight": P("tp", None),
    "layers.*.attention.wv.weight": P("tp", None),
    "layers.*.attention.wo.weight": P(None, "tp"),
    "layers.*.ffn_norm.weight": P(None),
    "layers.*.feed_forward.w1.weight": P("tp", None),
    "layers.*.feed_forward.w3.weight": P("tp", None),
    "layers.*.feed_forward.w2.weight": P(None, "tp"),
    "norm.weight": P(None),
    "output.weight": P("tp", None),
}
# Parameters between uses.
# llama3_70b_v5p.plan:6  use fsdp over fsdp
PARAMS = {
    "tok_embeddings.weight": P("tp", "fsdp"),
    "layers.*.attention_norm.weight": P("fsdp"),
    "layers.*.attention.wq.weight": P("tp", "fsdp"),
    "layers.*.attention.wk.weight": P("tp", "fsdp"),
    "layers.*.attention.wv.weight": P("tp", "fsdp"),
    "layers.*.attention.wo.weight": P("fsdp", "tp"),
    "layers.*.ffn_norm.weight": P("fsdp"),
    "layers.*.feed_forward.w1.weight": P("tp", "fsdp"),
    "layers.*.feed_forward.w3.weight": P("tp", "fsdp"),
    "layers.*.feed_forward.w2.weight": P("fsdp", "tp"),
    "norm.weight": P("fsdp"),
    "output.weight": P("tp", "fsdp"),
}
# Gradients: summed over the data axes into this layout. As PARAMS.
# llama3_70b_v5p.plan:6  use fsdp over fsdp
GRADS = PARAMS
# Optimizer state. As PARAMS.
# llama3_70b_v5p.plan:6  use fsdp over fsdp
OPTIMIZER = PARAMS

# Inputs of matmuls with all rows, by the weight: stated, so that its products share one all-gather.
INPUTS = {
    "layers.*.attention.wq.weight": P("fsdp", None, None),
    "layers.*.attention.wk.weight": P("fsdp", None, None),
    "layers.*.attention.wv.weight": P("fsdp", None, None),
    "layers.*.feed_forward.w1.weight": P("fsdp", None, None),
    "layers.*.feed_forward.w3.weight": P("fsdp", None, None),
}
# Gradients of results with all rows, likewise.
RESULTS = {
    "layers.*.attention.wo.weight": P("fsdp", None, None),
    "layers.*.feed_forward.w2.weight": P("fsdp", None, None),
}

NOT_DECAYED = {
    "layers.*.attention_norm.weight",
    "layers.*.ffn_norm.weight",
    "norm.weight",
}

# Activations between ops, and the collectives that XLA inserts there in the forward.
# llama3_70b_v5p.plan:6  use fsdp over fsdp
# llama3_70b_v5p.plan:7  use tp over tp
# llama3_70b_v5p.plan:8  use sp over tp
ACTIVATIONS = {
    "hidden": P("fsdp", "tp", None),  # reduce-scatter sequence over tp from embedding
    # all-gather sequence over tp for attention.q, attention.k, attention.v
    "attention.in": P("fsdp", "tp", None),
    "attention.q": P("fsdp", None, "tp", None),
    "attention.k": P("fsdp", None, "tp", None),
    "attention.v": P("fsdp", None, "tp", None),
    "attention.q_rotated": P("fsdp", None, "tp", None),
    "attention.k_rotated": P("fsdp", None, "tp", None),
    "attention.mixed": P("fsdp", None, "tp", None),
    "attention.out": P("fsdp", "tp", None),  # reduce-scatter sequence over tp from attention.out
    "hidden.mid": P("fsdp", "tp", None),
    "ffn.in": P("fsdp", "tp", None),  # all-gather sequence over tp for ffn.gate, ffn.up
    "ffn.gate": P("fsdp", None, "tp"),
    "ffn.up": P("fsdp", None, "tp"),
    "ffn.mid": P("fsdp", None, "tp"),
    "ffn.out": P("fsdp", "tp", None),  # reduce-scatter sequence over tp from ffn.down
    "head.in": P("fsdp", "tp", None),  # all-gather sequence over tp for head
    "logits": P("fsdp", None, "tp"),
}

# Options of the TPU compiler for v5p.
TPU_OPTIONS: dict[str, bool | int] = {
    # No windowed einsum: it makes permutes inside matmul loops out of gathers, which send more.
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": 1000000,
    # Gathers and reduce-scatters on the SparseCores, beside matmuls; 2d, 3d, nd: over several dims of the
    #   torus. Without nd, gradients over a whole torus are all-reduced.
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": True,
    # Scratch memory of a fusion: larger tiles. MaxText's limit for dense models.
    "xla_tpu_scoped_vmem_limit_kib": 98304,
}


def build_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the first 256 devices with neighbours along an axis linked on the torus if possible."""
    found = list(jax.devices() if devices is None else devices)[: math.prod(MESH.values())]
    # Auto: XLA chooses layouts between constraints; Explicit would need annotations in `loss_fn`.
    kinds = (AxisType.Auto,) * len(MESH)
    return Mesh(_on_torus(found), tuple(MESH), axis_types=kinds)


def _on_torus(devices: list[jax.Device]) -> np.ndarray:
    """The devices in the mesh's shape. A mesh axis may use a part of a torus axis."""
    shape = tuple(MESH.values())
    try:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError):  # the mesh fits no torus: use the devices' order
        return np.asarray(devices).reshape(shape)


def constrain(name: str, x: jax.Array) -> jax.Array:
    """The activation `name` in the compute dtype and in its layout."""
    return with_sharding_constraint(x.astype(COMPUTE), ACTIVATIONS[name])


def weight(name: str, w: jax.Array) -> jax.Array:
    """The parameter `name` in its layout of use: all-gather over fsdp."""
    return with_sharding_constraint(w, USED[_pattern(name)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def linear(
    name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...] = (-1,), contracted: int = 1
) -> jax.Array:
    """x [..., in] times the parameter `name`, w [out, in]: [..., out].

    With `out` (-1, D) the result is [..., heads, D]; if two dims are `contracted`, x is [..., heads, D].
    The backward all-gathers the weight again, so that no gathered weight outlives a pass, and
    sums its gradient over the ranks in fp32.
    A custom_vjp has no forward mode: jax.jvp and jax.jacfwd of the loss raise.
    """
    return _linear_forward(name, x, w, out, contracted)[0]


def _used(name: str, w: jax.Array) -> jax.Array:
    """The weight gathered, in bf16."""
    return weight(name, w.astype(COMPUTE))


def _linear_forward(
    name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...], contracted: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    i, o, used = _in_dims(x, _used(name, w), out, contracted)
    return jnp.einsum(f"...{i},{o}{i}->...{o}", _whole_rows(x, INPUTS, name), used), (x, w)


def _flat(x: jax.Array, dims: int) -> jax.Array:
    """x with its last `dims` as one: heads as a dim of a weight's gradient would decide how it is summed."""
    return x.reshape(*x.shape[: x.ndim - dims], -1)


def _linear_backward(
    name: str, out: tuple[int, ...], contracted: int, kept: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    x = _whole_rows(x, INPUTS, name)
    dy = _whole_rows(dy, RESULTS, name)
    i, o, used = _in_dims(x, _used(name, w), out, contracted)
    dx = jnp.einsum(f"...{o},{o}{i}->...{i}", dy, used)
    dw = jnp.einsum(
        "...o,...i->oi", _flat(dy, len(out)), _flat(x, contracted), preferred_element_type=jnp.float32
    )
    return dx, with_sharding_constraint(dw, GRADS[_pattern(name)]).astype(w.dtype)


linear.defvjp(_linear_forward, _linear_backward)


def _in_dims(x: jax.Array, w: jax.Array, out: tuple[int, ...], contracted: int) -> tuple[str, str, jax.Array]:
    """The einsum letters of w's columns and rows, and w with a dim for each.

    Attention's heads are dims of the weight, so that activations need no reshape, which XLA may copy for.
    """
    return "ij"[:contracted], "op"[: len(out)], w.reshape(*out, *x.shape[-contracted:])


def _whole_rows(x: jax.Array, specs: dict[str, P], name: str) -> jax.Array:
    """x with all rows of its sequences, if `specs` say so for the matmul with the parameter `name`."""
    return with_sharding_constraint(x, specs.get(_pattern(name), P(*[P.UNCONSTRAINED] * x.ndim)))


def lookup(name: str, table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Rows of the parameter `name`, table [V, E], at tokens [B, S]: [B, S, E].

    Each rank of tp looks up the rows of its own shard.
    The sum gets its layout before `constrain` shards it: otherwise XLA would gather the table, or permute
    ranks.
    """
    made = P("fsdp", None, None)
    return with_sharding_constraint(weight(name, table)[tokens], made)


def remat(block: Callable[..., Any]) -> Callable[..., Any]:
    """The block of a scan over layers; saves only its input and recomputes the block."""
    policy = jax.checkpoint_policies.nothing_saveable
    return jax.checkpoint(block, policy=policy, prevent_cse=False)  # not needed inside a scan


def layers(block: Callable[[jax.Array, Any], jax.Array], x: jax.Array, stack: Any) -> jax.Array:
    """x after `block(x, one layer's parameters)` for each layer of the stack."""
    body = remat(lambda x, layer: (block(x, layer), None))
    return jax.lax.scan(body, x, stack)[0]


def positions(length: int) -> jax.Array:
    """Position in its sequence of each row of an activation, [length]."""
    return jnp.arange(length)


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention: queries [B, S, heads, D], keys and values [B, S, kv_heads, D].

    Splash attention, which stores no scores: each device runs it on its sequences and heads.
    """
    given = tuple(ACTIVATIONS[name] for name in ("attention.q_rotated", "attention.k_rotated", "attention.v"))
    out = ACTIVATIONS["attention.mixed"]
    mapped = jax.shard_map(_splash, in_specs=given, out_specs=out, check_vma=False)
    return mapped(q, k, v)


def _splash(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """`attend` on one device."""
    rows, heads = q.shape[1:3]
    mask = splash_attention.CausalMask((rows, rows))
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask] * heads),
        block_sizes=splash_attention.BlockSizes(**BLOCK_SIZES),
        head_shards=1,
        q_seq_shards=1,
        interpret=jax.sharding.get_abstract_mesh().abstract_device.platform == "cpu",
    )
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q * q.shape[-1] ** -0.5, k, v))
    return jnp.swapaxes(jax.vmap(kernel)(q, k, v), 1, 2)


def build_train_step(
    loss_fn: Loss, optimizer: optax.GradientTransformation, mesh: Mesh, params: Any, clip_norm: float = 1.0
) -> Callable[..., Any]:
    """`step(state, tokens, targets, lr) -> (state, {"loss", "grad_norm"})`; donates the old state.

    tokens and targets: the global batch, int32 [sequences, sequence_tokens]. `params`: arrays or shapes.
    """

    def step(state: Any, tokens: jax.Array, targets: jax.Array, lr: jax.Array) -> Any:
        with _tracing(mesh):
            loss, grads = _accumulate(loss_fn, state["params"], tokens, targets)
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
            scale = jnp.minimum(1.0, clip_norm / (norm + 1e-6))
            grads = jax.tree.map(lambda g: g * scale, grads)
            params = state["params"]
            updates, moments = optimizer.update(grads, state["optimizer"], params)
            params = jax.tree.map(lambda p, u: p - lr * u, params, updates)
        return {"params": params, "optimizer": moments}, {"loss": loss, "grad_norm": norm}

    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)
    state = state_shardings(mesh, params, optimizer)
    return jax.jit(
        step,
        in_shardings=(state, rows, rows, whole),
        out_shardings=(state, {"loss": whole, "grad_norm": whole}),  # otherwise XLA may replicate state
        donate_argnums=0,
        compiler_options=_compiler_options(mesh),
    )


def build_gradients(loss_fn: Loss, mesh: Mesh, params: Any) -> Callable[..., Any]:
    """`gradients(params, tokens, targets) -> (loss, gradients)` of the global batch, for inspection."""

    def gradients(params: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        with _tracing(mesh):
            return _accumulate(loss_fn, params, tokens, targets)

    rows, where = NamedSharding(mesh, BATCH), shardings(mesh, params)
    out = (NamedSharding(mesh, P()), shardings(mesh, params, GRADS))
    return jax.jit(
        gradients,
        in_shardings=(where, rows, rows),
        out_shardings=out,
        compiler_options=_compiler_options(mesh),
    )


def build_eval_step(loss_fn: Loss, mesh: Mesh, params: Any) -> Callable[..., jax.Array]:
    """`evaluate(params, tokens, targets) -> mean loss` of a global batch."""

    def evaluate(params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        with _tracing(mesh):
            batches = (_microbatches(tokens), _microbatches(targets))
            return jnp.mean(jax.lax.map(lambda batch: loss_fn(params, *batch), batches))

    rows, where = NamedSharding(mesh, BATCH), shardings(mesh, params)
    whole = NamedSharding(mesh, P())
    return jax.jit(
        evaluate,
        in_shardings=(where, rows, rows),
        out_shardings=whole,
        compiler_options=_compiler_options(mesh),
    )


def _compiler_options(mesh: Mesh) -> dict[str, bool | int] | None:
    """TPU_OPTIONS on a mesh of TPUs; other compilers refuse their names."""
    return {"tpu": TPU_OPTIONS}.get(mesh.devices.flat[0].platform)


def _accumulate(loss_fn: Loss, params: Any, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, Any]:
    """The mean loss of the global batch and its gradients, fp32, accumulated over microbatches."""

    def one(total: Any, batch: Any) -> tuple[Any, None]:
        loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
        grads = _placed(grads, GRADS)  # reduce-scatter over fsdp, each microbatch
        return jax.tree.map(jnp.add, total, (loss, grads)), None

    batches = (_microbatches(tokens), _microbatches(targets))
    zeros = (jnp.float32(0), _placed(jax.tree.map(jnp.zeros_like, params), GRADS))
    total, _ = jax.lax.scan(one, zeros, batches)
    return jax.tree.map(lambda x: x / batches[0].shape[0], total)


def _microbatches(rows: jax.Array) -> jax.Array:
    """[sequences, S] -> [microbatches, MICROBATCH, S]: each rank splits its own sequences."""
    mine = rows.reshape(DATA_PARALLEL, -1, MICROBATCH // DATA_PARALLEL, rows.shape[-1])
    batches = jnp.moveaxis(mine, 0, 1).reshape(-1, MICROBATCH, rows.shape[-1])
    return with_sharding_constraint(batches, P(None, *BATCH))


def _tracing(mesh: Mesh) -> AbstractContextManager[None]:
    """Context for tracing a step: specs refer to this mesh."""
    return use_abstract_mesh(mesh.abstract_mesh)


def _spec(path: Any, leaf: Any, specs: dict[str, P]) -> P:
    """The leaf's spec; the dims of a stack before the parameter's own are whole."""
    spec = specs[_pattern(jax.tree_util.keystr(path, simple=True, separator="."))]
    return P(*[None] * (leaf.ndim - len(spec)), *spec)


# The following functions are the same for every plan: they read the tables above.


def shardings(mesh: Mesh, tree: Any, specs: dict[str, P] = PARAMS) -> Any:
    """A NamedSharding for every leaf of a parameter pytree, by the leaf's path.

    Layers may be single (`layers.3.norm`) or stacked along a leading dim (`layers.norm`, `layers.*.norm`).
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, _spec(path, leaf, specs)), tree
    )


def _pattern(name: str) -> str:
    """`layers.3.norm.weight` -> `layers.*.norm.weight`, the name in the tables."""
    return re.sub(r"^layers\.((\d+|\*)\.)?", "layers.*.", name)


def _placed(tree: Any, specs: dict[str, P]) -> Any:
    """The parameter-like pytree with the layouts `specs`; XLA inserts the collectives."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: with_sharding_constraint(leaf, _spec(path, leaf, specs)), tree
    )


def adamw(
    betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.1
) -> optax.GradientTransformation:
    """AdamW with decoupled decay, without the learning rate, which is an argument of the step."""
    return optax.chain(
        optax.scale_by_adam(*betas, eps=eps),
        optax.add_decayed_weights(weight_decay, mask=_decayed),
    )


def _decayed(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _pattern(jax.tree_util.keystr(path, simple=True, separator=".")) not in NOT_DECAYED,
        params,
    )


def state_shardings(mesh: Mesh, params: Any, optimizer: optax.GradientTransformation) -> Any:
    """A NamedSharding for every leaf of the state, for parameters or their shapes."""
    moments = optax.tree_map_params(
        optimizer,
        lambda moment, where: jax.tree.map(lambda _: where, moment),
        jax.eval_shape(optimizer.init, params),
        shardings(mesh, params, OPTIMIZER),
        transform_non_params=lambda _: NamedSharding(mesh, P()),
        is_leaf=lambda moment: isinstance(moment, optax.MaskedNode),  # a parameter without this moment
    )
    return {"params": shardings(mesh, params), "optimizer": moments}


def init_state(params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> Any:
    """Sharded parameters, and the optimizer's initial state in its layout."""
    where = state_shardings(mesh, params, optimizer)
    params = jax.device_put(params, where["params"])
    return {
        "params": params,
        "optimizer": jax.jit(optimizer.init, out_shardings=where["optimizer"])(params),
    }
