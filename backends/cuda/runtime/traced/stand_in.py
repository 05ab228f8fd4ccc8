"""A tensor that stands where a parameter was, in code that does more with it than one layer of torch does."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from planc.backends.cuda.runtime.traced.roles import UnknownError

PRODUCTS = ("matmul", "__matmul__", "mm")
CASTS = ("to", "type", "float", "bfloat16", "half", "type_as")


class StandIn(Tensor):
    """A product of an input with it is what `layer` makes of the input, its rows by number are those that `rows` finds;
    in anything else it is what `value` gives.

    It has the parameter's shape, and no numbers.
    """

    layer: Any = None
    value: Any = None
    rows: Any = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__getitem__" and isinstance(args[0], StandIn) and args[0].rows is not None:
            return args[0].rows(args[1])
        layers = [a for a in args if isinstance(a, StandIn) and a.layer is not None]
        if layers:
            (own,) = layers
            if (func is F.linear or name in PRODUCTS) and args[1] is own:
                return own.layer(args[0])
            if name == "addmm" and args[2] is own:
                return own.layer(args[1])
            if name in CASTS and args[0] is own:
                return own
        if name == "__get__" or not any(isinstance(a, StandIn) and a.value is not None for a in args):
            if layers and name != "__get__":
                raise UnknownError(
                    f"a weight of {tuple(layers[0].shape)} is used in {name}, which is no product with it"
                )
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        return func(*(a.value() if isinstance(a, StandIn) else a for a in args), **kwargs)


def stand_in(shape: tuple[int, ...], *, layer: Any = None, value: Any = None, rows: Any = None) -> StandIn:
    """A tensor of this `shape` on the meta device, with its `layer`, `value` or `rows`."""
    made = torch.empty(shape, device="meta").as_subclass(StandIn)
    made.__dict__.update(layer=layer, value=value, rows=rows)
    return made
