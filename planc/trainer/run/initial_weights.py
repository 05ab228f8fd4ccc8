"""Initial weights: every runtime starts from the same numpy arrays, keyed by parameter name.

An array depends only on the seed, the name and the model, not on the order of the calls, the rank or the layout.
Therefore any two runtimes start from equal weights, and a rank may compute only the parameters of its own stage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from planc.ir.model import Model, Param

if TYPE_CHECKING:
    from planc.ir.session import Initial, Weights

STD = 0.02
LOGIT_STD = 0.32
"""The head maps a normed vector to logits of at most this spread, so that the first loss is within
5 % of ln(vocab) at any width: it exceeds ln(vocab) by about half the logits' variance."""


def initial(model: Model, seed: int) -> Initial:
    """Return the function that a session calls for the initial values of the parameters of `model` (float32, global
    shape).

    Each parameter has its own random generator, from its name and the `seed`, so that no value depends on the layout.
    """

    def values(name: str, shape: tuple[int, ...]) -> Weights:
        param = model.param[pattern(name)]
        assert shape == model.shape(param), f"{name} is {model.shape(param)}, not {shape}"
        if param.init == "ones":
            return np.ones(shape, np.float32)
        if param.init == "zeros":
            return np.zeros(shape, np.float32)
        drawn = _generator(seed, name).standard_normal(shape, np.float32)
        drawn *= np.float32(_std(model, param))
        return drawn

    return values


def pattern(name: str) -> str:
    """Return the name that the parameter `name` has in the op graph: `layers.3.attention.wq.weight` ->
    `layers.*.attention.wq.weight`."""
    return re.sub(r"^layers\.\d+\.", "layers.*.", name)


def names(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every parameter of every layer of `model` with its global shape, in the order of the op graph."""
    for param in model.params:
        layers = [layer for layer, kind in enumerate(model.kinds) if kind in param.sections]
        for layer in layers or [0]:
            yield param.name.replace("*", str(layer)), model.shape(param)


def init_sha256(model: Model, values: Initial) -> str:
    """Return the SHA-256 of the names, shapes and bytes of all parameters of `model`, which the function `values`
    returns. One parameter at a time is in memory."""
    digest = hashlib.sha256()
    for name, shape in sorted(names(model)):
        digest.update(f"{name} {shape}\n".encode())
        digest.update(values(name, shape).astype("<f4", copy=False).tobytes())
    return digest.hexdigest()


def _std(model: Model, param: Param) -> float:
    if "last" in param.sections and "vocab" in param.dims:
        fan_in = model.shape(param)[-1]
        return min(STD, LOGIT_STD / sqrt(fan_in))
    return STD


def _generator(seed: int, name: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
