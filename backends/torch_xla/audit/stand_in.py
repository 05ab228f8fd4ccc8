"""A stand-in for an XLA device on the CPU: tensors say that they are on `xla:0`, and reads of their values are seen.

On XLA a tensor is a promise: `.item()` or `if tensor:` compiles and runs everything before it, and waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

READS = frozenset(
    {
        *("item", "tolist", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__"),
        *("__complex__", "__contains__", "__format__", "__repr__"),
    }
)
"""Methods of a tensor that need its values on the host."""

DEVICE = torch.device("xla", 0)
ANSWERS: dict[Any, Any] = {Tensor.device: DEVICE, Tensor.is_cpu: False, torch._C.TensorBase.__dict__["is_xla"]: True}
"""Values of tensor attributes during the audited step."""


class ReadStandIn(TorchFunctionMode):
    """`read(name)` is told each read of a value, by the method's name."""

    def __init__(self, read: Callable[[str], None]) -> None:
        super().__init__()
        self._read = read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__" and (found := _answer(func)) is not None:
            return found
        if name in READS or (name == "to" and _to_host(args, kwargs)):
            self._read(name)
        return func(*map(_on_cpu, args), **{key: _on_cpu(value) for key, value in kwargs.items()})


def _answer(getter: Any) -> Any:
    return next((value for attribute, value in ANSWERS.items() if getter.__self__ is attribute), None)


def _to_host(args: Any, kwargs: Any) -> bool:
    """True if `.to` names the host."""
    return any(isinstance(a, str | torch.device) and torch.device(a).type == "cpu" for a in (*args, *kwargs.values()))


def _on_cpu(value: Any) -> Any:
    """The device that stands in for XLA's."""
    is_device = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("xla"))
    return torch.device("cpu") if is_device and torch.device(value).type == "xla" else value
