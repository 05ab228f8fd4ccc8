"""Names that the module `sync` takes from the rest of a program: what a serve plan decides, here of no tensors."""

from __future__ import annotations

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

MESH = {"tp": 1}
DTYPE = jnp.bfloat16
SHAPES: dict[str, tuple[int, ...]] = {}
SPECS: dict[str, P] = {}
PADDED: dict[str, tuple[int, ...]] = {}
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int | None, ...]]] = {}
STACKS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
NARROW: set[str] = set()
