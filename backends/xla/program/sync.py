"""The weights of a trainer, laid out for a generator that serves them.

A tensor is cast on the trainer's devices and put on the generator's; XLA and JAX move its shards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from planc.backends.common.box_reader import open_checkpoint
from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.stacked_boxes import Index, ReadBox, stacked_box
from planc.backends.xla.program.sync_names import DTYPE, LAYERS, MESH, NARROW, PADDED, SHAPES, SPECS, STACKS

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
    return cast(values, name)


@functools.partial(jax.jit, static_argnames="name")
def cast(values: jax.Array, name: str) -> dict[str, jax.Array]:
    """The tensor `name` and its scales as the generator holds them, of `values` that are stacked as there."""
    shape = SHAPES[name]
    values = values[(..., *(slice(n) for n in shape))].astype(DTYPE)
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


def load(folder: Path, mesh: Mesh) -> dict[str, jax.Array]:
    """Return the generator's weights on its `mesh`, as `sync` does, from the checkpoint `folder` (`step-...`).

    It is of the training plan, or of another plan of its model. Of its files, a process reads the shards of its own
    devices alone. Raises ValueError if the checkpoint is of another model.
    """
    none: tuple[tuple[int, ...], tuple[int | None, ...]] = ((), (-1,))
    shapes = {
        name.replace("*", str(layer)): shape
        for name, shape in SHAPES.items()
        for layer in LAYERS.get(name, none)[1]
        if layer is not None
    }
    reader = open_checkpoint(folder, shapes)

    def read(name: str, index: Index) -> np.ndarray:
        found: np.ndarray = reader.box(f"params.{name}", tuple((s.start, s.stop) for s in index))
        return found

    found: dict[str, jax.Array] = {}
    for name, shape in SHAPES.items():
        own = PADDED.get(name, shape) if FACTS.pads else shape
        whole = (*LAYERS.get(name, none)[0], *own)
        shard = functools.partial(shard_of, read, name, whole)
        found[name] = jax.make_array_from_callback(whole, NamedSharding(mesh, SPECS[name]), shard)
        if FACTS.float8 and name in NARROW:
            for key, array in cast(found[name], name).items():
                found[key] = jax.device_put(array, NamedSharding(mesh, SPECS[key]))
    return found


def shard_of(read: ReadBox, name: str, whole: tuple[int, ...], index: Index) -> np.ndarray:
    """The values at `index` of the generator's array `name` of shape `whole`, in the dtype of weights."""
    box = tuple(slice(*s.indices(n)[:2]) for s, n in zip(index, whole, strict=True))
    found: np.ndarray = stacked_box(read, name, LAYERS.get(name), SHAPES[name], box).astype(DTYPE)
    return found
