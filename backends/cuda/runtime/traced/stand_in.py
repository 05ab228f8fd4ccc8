"""Stands in for a parameter in a user's code that does more with the parameter than one torch layer would."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from planc.backends.cuda.runtime.traced.roles import UnknownError

PRODUCTS = ("matmul", "__matmul__", "mm")
CASTS = ("to", "type", "float", "bfloat16", "half", "type_as")


class StandIn(Tensor):
    """A tensor with a parameter's shape and no values. A matmul with it calls `layer`, indexing it calls `rows`, and
    any other use gets the tensor that `value` returns. One of the three is set."""

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
            if name != "__get__":
                raise UnknownError(f"a weight of {tuple(own.shape)} is used in {name}, which is not a matmul with it")
        elif _has_value((args, kwargs)):
            return func(*_with_values(args), **_with_values(kwargs))
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def _has_value(given: Any) -> bool:
    """True if one of these arguments stands in for a tensor."""
    if isinstance(given, dict):
        return any(map(_has_value, given.values()))
    if type(given) in (list, tuple):
        return any(map(_has_value, given))
    return isinstance(given, StandIn) and given.value is not None


def _with_values(given: Any) -> Any:
    """Replaces stand-ins in these arguments by their tensors."""
    if isinstance(given, StandIn) and given.value is not None:
        return given.value()
    if isinstance(given, dict):
        return {k: _with_values(v) for k, v in given.items()}
    return type(given)(_with_values(v) for v in given) if type(given) in (list, tuple) else given


def stand_in(shape: tuple[int, ...], *, layer: Any = None, value: Any = None, rows: Any = None) -> StandIn:
    """Returns a StandIn of this `shape` on the meta device, with its `layer`, `value` or `rows`."""
    with _disable_current_modes():
        made = torch.empty(shape, device="meta").as_subclass(StandIn)
    made.__dict__.update(layer=layer, value=value, rows=rows)
    return made
