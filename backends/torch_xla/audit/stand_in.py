"""Stands in for an XLA device on the CPU: tensors report the device `xla:0`, and reads of their values are recorded.

On XLA a tensor is lazy: `.item()` or `if tensor:` compiles and runs everything before it, and waits.
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
"""Tensor methods that need values on the host."""

DEVICE = torch.device("xla", 0)
ANSWERS: dict[Any, Any] = {Tensor.device: DEVICE, Tensor.is_cpu: False, torch._C.TensorBase.__dict__["is_xla"]: True}
"""Values of tensor attributes during the audited step."""


class ReadStandIn(TorchFunctionMode):
    """Makes tensors report an XLA device, and calls `read(name)` when a method `name` reads a tensor on the host."""

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
    """True if the arguments of a tensor's `.to` name the CPU."""
    return any(isinstance(a, str | torch.device) and torch.device(a).type == "cpu" for a in (*args, *kwargs.values()))


def _on_cpu(value: Any) -> Any:
    """Returns the CPU instead of an XLA device; any other `value` is unchanged."""
    is_device = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("xla"))
    return torch.device("cpu") if is_device and torch.device(value).type == "xla" else value
