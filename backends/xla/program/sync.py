"""The weights of a trainer, laid out for a generator that serves them.

A tensor is cast on the trainer's devices and put on the generator's; XLA and JAX move its shards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.sync_names import DTYPE, MESH, NARROW, PADDED, SHAPES, SPECS, STACKS

# The largest number of float8_e4m3fn, which the largest element of a block becomes.
LARGEST = 448.0


def generator_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the generator's devices (None: the first of all) with the axes of MESH."""
    kinds = (AxisType.Auto,) * len(MESH)
    return jax.make_mesh(tuple(MESH.values()), tuple(MESH), kinds, devices=devices)


def sync(params: Mapping[str, jax.Array], mesh: Mesh) -> dict[str, jax.Array]:
    """Return the generator's weights on its `mesh`: the trainer's `params`, laid out as SPECS.

    Layers are stacked along a first dim, as in the training program. A float8 matrix NAME has its scales in
    NAME_scale_inv. The generator has the old weights until it takes the returned ones.
    """
    found: dict[str, jax.Array] = {}
    for name in SHAPES:
        for key, array in served(params[name], name).items():
            found[key] = jax.device_put(array, NamedSharding(mesh, SPECS[key]))
    return found


@functools.partial(jax.jit, static_argnames="name")
def served(stored: jax.Array, name: str) -> dict[str, jax.Array]:
    """The tensor `name` and its scales as the generator holds them, on the trainer's devices."""
    shape = SHAPES[name]
    values = stored[(..., *(slice(n) for n in shape))]
    if FACTS.restacks and name in STACKS:
        dims, places = STACKS[name]
        layers = values.reshape(-1, *shape)[np.maximum(places, 0)]
        kept = np.reshape(places, (-1, *(1 for _ in shape))) >= 0
        values = jnp.where(kept, layers, 0).reshape(*dims, *shape)
    values = values.astype(DTYPE)
    found = narrowed(values, name) if FACTS.float8 and name in NARROW else {name: values}
    if FACTS.pads and name in PADDED:
        ends = [(0, 0)] * (values.ndim - len(shape))
        ends += [(0, b - a) for a, b in zip(shape, PADDED[name], strict=True)]
        found[name] = jnp.pad(found[name], ends)
    return found


def narrowed(values: jax.Array, name: str) -> dict[str, jax.Array]:
    """The matrix `name` as float8, and the scale of each block: its largest magnitude / 448."""
    rows, columns = values.shape[-2:]
    high, wide = (FACTS.block, FACTS.block) if FACTS.block else (rows, columns)
    ends = [(0, 0)] * (values.ndim - 2) + [(0, -rows % high), (0, -columns % wide)]
    whole = jnp.pad(values.astype(jnp.float32), ends)
    blocks = whole.reshape(*whole.shape[:-2], whole.shape[-2] // high, high, whole.shape[-1] // wide, wide)
    most = jnp.abs(blocks).max((-3, -1), keepdims=True)
    scales = jnp.where(most > 0, most * (1 / LARGEST), 1.0)
    cast = jnp.clip(blocks * (1 / scales), -LARGEST, LARGEST).astype(jnp.float8_e4m3fn)
    cast = cast.reshape(whole.shape)[..., :rows, :columns]
    return {name: cast, f"{name}_scale_inv": scales.squeeze((-3, -1))}
