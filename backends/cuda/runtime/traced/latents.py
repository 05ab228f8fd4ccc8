"""Runs the layers of a user's multi-head latent attention on this rank's tokens only, if the sequence is sharded.

The user's code reads the number of tokens from its input, so it gets a `Late`: a tensor with the full sequence's shape
that holds local tokens only. The up-projections gather the latent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from planc.backends.cuda.runtime.traced.roles import REARRANGING, UnknownError

OF_SHAPES = ("is_floating_point", "is_complex", "dim", "ndimension", "size", "numel", "element_size", "__len__")
"""Functions of a tensor that do not read its values."""


class Late(Tensor):
    """A tensor with the full sequence's shape [B, S, width] that holds only this rank's tokens, `own`.

    A Late may be a concatenation along the width: it then has `parts` instead, and `own` is None. It can be split at
    its parts and get dims of length 1; every other function raises UnknownError.
    """

    own: Any = None
    parts: Any = ()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__get__" or name in OF_SHAPES:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if name not in REARRANGING:
            raise UnknownError(f"{name} of a latent that is sharded over tokens")
        late = next(a for a in (*args, *kwargs.values()) if isinstance(a, Late))
        with torch._C.DisableTorchFunctionSubclass(), _disable_current_modes():
            places = torch.arange(late.shape[-1]).expand(late.shape)
            given = [places if a is late else a for a in args]
            try:
                made = func(*given, **{k: places if a is late else a for k, a in kwargs.items()})
            except (TypeError, RuntimeError):
                raise UnknownError(f"{name} of a latent that is sharded over tokens") from None
            if isinstance(made, tuple | list):
                return tuple(late.part(name, piece) for piece in made)
            return late.part(name, made)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise UnknownError(f"{func} of a latent that is sharded over tokens")

    def part(self, name: str, places: Any) -> Tensor:
        """Returns the slice of this tensor with the indices `places` of the width, as the function `name` selected
        them. Raises UnknownError unless it is the full width or one of the `parts`."""
        same = isinstance(places, Tensor) and places.dtype == torch.int64 and places.dim() > 1
        if same and _without_ones(places.shape[:-1]) == _without_ones(self.shape[:-1]):
            inside = places[(0,) * (places.dim() - 1)].tolist()
            begin = 0
            if inside == list(range(self.shape[-1])):
                return late_of(self.own, tuple(places.shape), self.parts)
            for part in self.parts:
                if inside == list(range(begin, begin + part.shape[-1])):
                    found: Tensor = part
                    return found
                begin += part.shape[-1]
        raise UnknownError(f"{name} of a latent that is sharded over tokens")


def late_of(own: Any, shape: tuple[int, ...], parts: Any = ()) -> Late:
    """Returns a Late of this `shape` with the local tokens `own`, or if that is None, of `parts` side by side."""
    like: Tensor = own if own is not None else parts[0]
    made: Late = Tensor._make_wrapper_subclass(Late, shape, dtype=like.dtype, device=like.device)
    made.own, made.parts = own, parts
    return made


def own_of(hidden: Any) -> Any:
    """Returns the local tokens of `hidden` if it is a Late, else `hidden` itself."""
    return hidden.own if isinstance(hidden, Late) else hidden


def late_of_some(hidden: Tensor, tokens: int) -> Tensor:
    """Returns `hidden` states as a Late of `tokens` tokens if they have only local tokens, else unchanged."""
    if hidden.dim() != 3:
        return hidden
    batch, here, width = hidden.shape
    divided = isinstance(hidden, DTensor) and any(p.is_shard(1) for p in hidden.placements)
    return hidden if here == tokens and not divided else late_of(hidden, (batch, tokens, width))


def _without_ones(shape: Any) -> list[int]:
    return [n for n in shape if n != 1]


class AsWhole:
    """A pre-hook of attention that turns an input with local tokens only into a Late of the full sequence's shape."""

    def __init__(self, tokens: Callable[[], int]) -> None:
        self.tokens = tokens

    def __call__(self, module: nn.Module, args: Any) -> Any:
        hidden, *rest = args
        return (late_of_some(hidden, self.tokens()), *rest)


class OnOwn:
    """Applies a layer or norm to the local tokens of a Late, and returns a Late."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Any:
        if not isinstance(x, Late):
            return self.layer(x)
        made = self.layer(x.own)
        return late_of(made, (*x.shape[:-1], made.shape[-1]))


class ToHeads:
    """Applies an up-projection to a latent of local tokens, which its parallel style gathers; returns all tokens."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Any:
        if not isinstance(x, Late):
            return self.layer(x)
        made = self.layer(x.own)
        return made.view(*x.shape[:-1], made.shape[-1])


class Down:
    """The down-projection: returns the latent of keys and values, and the rotary key that all heads share, in one."""

    def __init__(self, holder: nn.Module, rows: tuple[tuple[int, ...], ...]) -> None:
        self.holder = holder
        self.order = torch.tensor([row for own in rows for row in own]).argsort()
        self.latent_first = self.order.tolist() == list(range(len(self.order)))

    def __call__(self, x: Tensor) -> Any:
        modules: Any = self.holder._modules
        given = x.own if isinstance(x, Late) else x
        latent, rotated = modules["wkv_a"](given), modules["wk_rope"](given)
        shared = modules["keys"](rotated, rotated)
        if not isinstance(x, Late):
            made = torch.cat((latent, shared), dim=-1)
            return made if self.latent_first else made[..., self.order.to(made.device)]
        if not self.latent_first:
            raise UnknownError("the rotary key that all heads share does not follow the latent")
        shape = (*x.shape[:-1], latent.shape[-1])
        return late_of(None, (*shape[:-1], shape[-1] + shared.shape[-1]), (late_of(latent, shape), shared))


class SharedKey(nn.Module):
    """Returns the rotary key [B, S, P] that all heads share. Its parallel style replicates the key, and sums the key's
    gradient over the ranks of all heads."""

    def forward(self, own: Tensor, shared: Tensor) -> Tensor:
        return shared
