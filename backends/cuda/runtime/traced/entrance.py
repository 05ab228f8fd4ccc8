"""Redistributes the input of attention or MLP where no module can do so: the layers are children of the block itself,
or of a module that also contains the norm before them.

The input is redistributed once for all of these layers. If a rank holds only some tokens of each sequence, the code
between norm and layers sees a `Late`: a tensor with the full sequence's shape and local tokens only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from planc.backends.cuda.runtime.traced.latents import Late, late_of_some


class Entrance(nn.Module):
    """The identity on the input of attention or MLP; its parallel style redistributes this input."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Entered:
    """A layer that reads its input through an Entrance: all layers with the same input share one redistribution."""

    def __init__(self, entrance: Entrance, layer: Any) -> None:
        self.entrance, self.layer = entrance, layer

    def __call__(self, x: Tensor) -> Any:
        given = x.own if isinstance(x, Late) else x
        made = self.layer(self._brought(given))
        return made.view(*x.shape[:-1], made.shape[-1]) if isinstance(x, Late) else made

    def _brought(self, given: Any) -> Any:
        name = f"_planc_{id(self.entrance)}"
        if (known := getattr(given, name, None)) is not None:
            return known
        brought = self.entrance(given)
        if brought is not given:
            setattr(given, name, brought)
        return brought


class ForWhole:
    """A norm whose output becomes a `Late` (full sequence's shape, local tokens only) if the sequence is sharded."""

    def __init__(self, norm: Any, tokens: Callable[[], int]) -> None:
        self.norm, self.tokens = norm, tokens

    def __call__(self, x: Tensor) -> Any:
        return late_of_some(self.norm(x), self.tokens())
