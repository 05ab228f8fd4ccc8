"""Sizes of a model in closed form: parameters by name, bytes of named activations, the key-value cache.

Source: public scaling book (https://jax-ml.github.io/scaling-book), transformers chapter, whose answers tests compare.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import prod

from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Model


def parameters_of(model: Model, *patterns: str) -> int:
    """Number of parameters of `model` whose names match one of the globs (`patterns`), all layers together.

    `*` in a name is the layer's number.

    >>> parameters_of(plan.model, "*")
    70553706496
    """
    return sum(
        model.elements(p) * model.copies(p) for p in model.params if any(fnmatchcase(p.name, glob) for glob in patterns)
    )


def parameter_share(model: Model, some: Iterable[str], of: Iterable[str]) -> float:
    """Share of the parameters that match one of the globs `of` that also count among those that match `some`.

    >>> round(parameter_share(plan.model, ["*feed_forward*"], ["*"]), 2)
    0.8
    """
    return parameters_of(model, *some) / parameters_of(model, *of)


def activation_bytes(model: Model, tensors: Iterable[str], tokens: float, dtype: str = "bf16") -> float:
    """Bytes of these activations of every block for `tokens` tokens, nothing divided.

    `tensors` are their names in `model`, `dtype` is what they are stored in. Raises KeyError for a tensor that the
    model does not have.

    >>> activation_bytes(plan.model, ["attention.q"], tokens=8192) == 2 * 8192 * 8192 * 80  # 80 layers of bf16
    True
    """
    widths = [_width(model, model.tensor[name].dims) for name in tensors]
    return tokens * sum(widths) * model.layers * DTYPE_BYTES[dtype]


def kv_cache_bytes_per_token(model: Model, element_bytes: int) -> int:
    """Bytes of keys and values that one token leaves behind in all layers of `model`, at `element_bytes` bytes a
    number.

    >>> kv_cache_bytes_per_token(plan.model, element_bytes=2)  # 2 x 80 layers x 8 heads x 128 x 2 bytes
    327680
    """
    return 2 * model.layers * model.sizes["kv_heads"] * model.sizes["head_dim"] * element_bytes


def _width(model: Model, dims: tuple[str, ...]) -> int:
    return prod(model.sizes[d] for d in dims if d not in ("batch", "sequence"))
