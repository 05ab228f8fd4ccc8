"""The layers of half a block for which no module of their own is called behind its norm: they lie in the block itself,
or in a module that has the norm too.

What they take is brought to all of them at one place, the entrance, as a program brings it to a module. Where a rank
has some tokens of each sequence, the code between norm and layers has what stands for them (`Late`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from planc.backends.cuda.runtime.traced.latents import Late, late_of_some


class Entrance(nn.Module):
    """Called with what the layers of half a block take; its parallel style brings it to them."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Entered:
    """A layer behind an entrance: layers that are called with one tensor have it brought to them once."""

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
    """A norm whose output stands for all tokens, where this rank has some of them."""

    def __init__(self, norm: Any, tokens: Callable[[], int]) -> None:
        self.norm, self.tokens = norm, tokens

    def __call__(self, x: Tensor) -> Any:
        return late_of_some(self.norm(x), self.tokens())
