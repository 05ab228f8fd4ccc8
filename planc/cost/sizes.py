"""Sizes of a model in closed form: parameters by name, bytes of named activations, the key-value cache."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import prod

from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Model


def parameters_of(model: Model, *patterns: str) -> int:
    """Parameters whose names match one of the globs, all layers together. `*` in a name is the layer's number."""
    return sum(
        model.elements(p) * model.copies(p) for p in model.params if any(fnmatchcase(p.name, glob) for glob in patterns)
    )


def parameter_share(model: Model, some: Iterable[str], of: Iterable[str]) -> float:
    """Parameters that match `some`, as a part of those that match `of`."""
    return parameters_of(model, *some) / parameters_of(model, *of)


def activation_bytes(model: Model, tensors: Iterable[str], tokens: float, dtype: str = "bf16") -> float:
    """Bytes of these activations of every block for `tokens` tokens, nothing divided.

    Raises KeyError for a tensor that the model does not have.
    """
    widths = [_width(model, model.tensor[name].dims) for name in tensors]
    return tokens * sum(widths) * model.layers * DTYPE_BYTES[dtype]


def kv_cache_bytes_per_token(model: Model, element_bytes: int) -> int:
    """Keys and values that one token leaves behind in all layers."""
    return 2 * model.layers * model.sizes["kv_heads"] * model.sizes["head_dim"] * element_bytes


def _width(model: Model, dims: tuple[str, ...]) -> int:
    return prod(model.sizes[d] for d in dims if d not in ("batch", "sequence"))
