"""The mesh of a program, and the options that its steps are compiled with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.names import MESH, SLICES, TPU_OPTIONS


def build_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the first FACTS.devices devices FACTS.arranged."""
    if FACTS.torus:
        found = list(jax.devices() if devices is None else devices)[: math.prod(MESH.values())]
    # Auto: XLA chooses layouts between constraints; Explicit would need annotations in `loss_fn`.
    kinds = (AxisType.Auto,) * len(MESH)
    if FACTS.slices:
        return Mesh(_on_slices(found), tuple(MESH), axis_types=kinds)
    if FACTS.torus:
        return Mesh(_on_torus(found), tuple(MESH), axis_types=kinds)
    return jax.make_mesh(tuple(MESH.values()), tuple(MESH), kinds, devices=devices)


def _on_torus(devices: list[jax.Device]) -> np.ndarray:
    """The devices in the mesh's shape. A mesh axis may use a part of a torus axis."""
    shape = tuple(MESH.values())
    try:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError):  # the mesh fits no torus: use the devices' order
        return np.asarray(devices).reshape(shape)


def _on_slices(devices: list[jax.Device]) -> np.ndarray:
    """The devices in the mesh's shape. A mesh axis may use a part of a torus axis."""
    across = tuple(SLICES.get(name, 1) for name in MESH)
    within = tuple(size // ranks for size, ranks in zip(MESH.values(), across, strict=True))
    try:
        return mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError):  # the mesh fits no such torus
        return np.asarray(devices).reshape(tuple(MESH.values()))


def _compiler_options(mesh: Mesh) -> dict[str, bool | int] | None:
    """TPU_OPTIONS on a mesh of TPUs; other compilers refuse their names."""
    return {"tpu": TPU_OPTIONS}.get(mesh.devices.flat[0].platform)
