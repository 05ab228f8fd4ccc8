"""The lengths of a model's dims, from a family's table of sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from planc.ir.dims import DIMS, INNER

MAX_LAYERS = 100_000


def dims_of(size: Any, changes: Mapping[str, int] | None = None) -> dict[str, int]:
    """The fields of a family's `Size` that are dims and not 0, in its order, with `changes` made.

    A `head_dim` of 0 is embed / heads, before the changes. Raises ValueError for too many layers.
    """
    named = {f.name: getattr(size, f.name) for f in fields(size) if f.name in (*DIMS, *INNER)}
    if named.get("head_dim") == 0:
        named["head_dim"] = named["embed"] // named["heads"]
    sizes = {name: length for name, length in named.items() if length} | dict(changes or {})
    check_layers(sizes["layers"])
    return sizes


def check_layers(layers: int) -> int:
    """This number of layers; each has its place in a list. Raises ValueError when it is absurd."""
    if layers > MAX_LAYERS:
        raise ValueError(f"{layers} layers are more than the {MAX_LAYERS} that planc takes")
    return layers
