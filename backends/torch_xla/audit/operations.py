"""Records the operations of a step in the dispatcher: from Python, composite kernels and the backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from planc.backends.torch_xla.audit.places import Place, here
from planc.diag.fast_dataclass import dataclass

MASKS = (torch.bool, torch.uint8)
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
"""Operations that take indices or masks: the number of true elements of a mask becomes a size."""


@dataclass(frozen=True)
class Operation:
    """One call of a torch operation. Python numbers among its arguments become constants in XLA's graph."""

    name: str
    place: Place | None
    numbers: tuple[complex, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its outputs."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of a step in `done`. Calls `read` for an operation whose value the host reads, and `sized`
    for one whose output shape depends on values."""

    def __init__(self, read: Callable[[str], None], sized: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[Operation] = []
        self._read, self._sized = read, sized

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags:
            self._read(func.overloadpacket.__name__)
        if _sized_by_data(func, args, kwargs):
            self._sized(func.overloadpacket.__name__)
        made = func(*args, **kwargs)
        shapes = tuple(tuple(t.shape) for t in _leaves(made) if isinstance(t, Tensor))
        numbers = tuple(n for n in _leaves((args, kwargs)) if isinstance(n, int | float | complex))
        self.done.append(Operation(str(func), here(), numbers, shapes))
        return made


def _sized_by_data(func: Any, args: Any, kwargs: Any) -> bool:
    """True if the shape of the operation's output depends on values of its inputs."""
    name = func.overloadpacket.__name__
    if name in INDEXED:
        return any(isinstance(index, Tensor) and index.dtype in MASKS for index in args[1])
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return False
    return torch.Tag.dynamic_output_shape in func.tags


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value
