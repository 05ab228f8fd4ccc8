"""Names that the other modules take from the rest of a program: tables, here of a small plan, and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Loss = Callable[[Any, jax.Array, jax.Array], jax.Array]

MESH = {"pp": 2}
DATA_PARALLEL = 1
MICROBATCH = 2
STACK: tuple[str | None, ...] = ("pp",)
LAYERS = 2
STAGE_LAYERS: Any = (2, 2)
MICROBATCHES = 4
CHUNKS = 1
ROUND = 1
FORWARDS_PER_RANK = 4
FIRST_LOSS = 1
FIRST_BACKWARD = 1
FORWARDS = 5
ACTIVATION_SLOTS = 2
SHARDS = 1
COMPUTE: Any = jnp.bfloat16
PARAMS: dict[str, P] = {}
GRADS: dict[str, P] = {}
SUMMED: dict[str, P] = {}
OPTIMIZER: dict[str, P] = {}
PARAMS_DTYPE: Any = jnp.float32
OPTIMIZER_DTYPE: Any = jnp.float32
PARAMS_MEMORY = "pinned_host"
OPTIMIZER_MEMORY = "pinned_host"
NOT_DECAYED: set[str] = set()
PADDED: dict[str, tuple[tuple[int, int], ...]] = {}
SLICES: dict[str, int] = {}
TPU_OPTIONS: dict[str, bool | int] = {}
NARROW: dict[str, str] = {}
RECIPES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
SEGMENTS: Any = ()
ACTIVATIONS: dict[str, P] = {"hidden": P(None, None, None)}
EXPERTS: dict[str, P] = {}
EXPERTS_GATHERED: dict[str, tuple[int, tuple[str, ...]]] = {}
EXPERTS_REPEATED: dict[str, tuple[str, ...]] = {}
EXPERTS_TOKENS: tuple[str, ...] = ()
GROUPS: Any = ((0, 1, 2, ()),)
SAVED_BETWEEN: tuple[str, ...] = ()
ENDS: dict[str, P] = {"hidden": P(None, "pp", None)}
TARGETS = P(None, "pp")
LAST: set[str] = set()

ONLY_CHUNK = cast(jax.Array, np.int32(0))
"""The stage of a rank that has one: programs do without."""


def remat(block: Callable[..., Any], *, alone: bool = False) -> Callable[..., Any]:
    """The block of a scan over layers; saves only its input and recomputes the block."""
    return jax.checkpoint(block, prevent_cse=False)


def _in_groups(block: Callable[..., Any], x: Any, stack: Any) -> Any:
    """x after all layers of the stack."""
    return jax.lax.scan(lambda x, layer: (block(x, layer), None), x, stack)[0]


def _pattern(name: str) -> str:
    """The name of a parameter in the tables."""
    return name


def _unpadded(params: Any) -> Any:
    """The parameters without the padding to equal shards."""
    return params


def _ordered(rows: jax.Array) -> jax.Array:
    """Tokens in the order in which ranks hold them."""
    return rows


def _wide(params: Any) -> Any:
    """Parameters cast to fp32, so that their gradients are accumulated in fp32."""
    return jax.tree.map(lambda w: w.astype(jnp.float32), params)


def unpicked(layers: int, experts: int) -> jax.Array:
    """Zeroes: what the layers are given, and add their counts of picks to."""
    return jnp.zeros((layers, experts), jnp.int32)


def _placed(tree: Any, specs: dict[str, P]) -> Any:
    """The tree with the layouts of a table."""
    return tree


def shardings(mesh: Mesh, params: Any, specs: dict[str, P] | None = None) -> Any:
    """A NamedSharding for every parameter."""
    return jax.tree.map(lambda _: NamedSharding(mesh, P()), params)


def weight(name: str, w: jax.Array) -> jax.Array:
    """The parameter `name` in its layout of use."""
    return w


def _wide_linear(name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...] = (-1,), contracted: int = 1) -> jax.Array:
    """x [..., in] times the parameter `name`, w [out, in], in COMPUTE."""
    return x @ w.T
