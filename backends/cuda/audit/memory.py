"""Tracks the live bytes of a traced program: the storages that ops allocate, until they are freed.

DTensor also runs ops on global shapes to infer metadata. These allocate nothing on a device and are not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import loss as loss_ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planc.backends.cuda.audit.observe import Observer


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts the bytes of storages: `live` is their sum, and `peak` the maximum of `live`.

    A tensor allocated before the mode starts counts only after it is passed to `hold`. Every op is also passed to
    `observer`, because one dispatch mode takes half the time of two.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = self.highest = 0
        self.peak_at = ""
        self._observer = observer
        self._sizes: dict[int, int] = {}
        self._passed_on: set[int] = set()
        self._metadata = 0
        self._entered = ExitStack()

    def __enter__(self) -> Any:
        for owner, name in _METADATA:
            self._entered.enter_context(patch.object(owner, name, self._silenced(getattr(owner, name))))
        self._entered.enter_context(patch.object(torch.UntypedStorage, "resize_", self._resizing()))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._entered.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        if self._observer is not None:
            self._observer.see(func, args, kwargs)
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # as on a device; on fake tensors the op would return a new one
        made = func(*args, **(kwargs or {}))
        if not self._metadata:
            self.hold(tree_leaves(made))
            self._mark(func)
            self.multiply(func, args, made)
        return made

    def multiply(self, func: Any, args: Any, made: Any) -> None:
        """Passes the call of `func` with the result `made` on to the observer, as a matmul that it may be."""
        if self._observer is not None:
            self._observer.multiply(func, args, made)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """A context in which new tensors are not counted, because a fused kernel would not allocate them."""
        self._metadata += 1
        try:
            yield
        finally:
            self._metadata -= 1

    def hold(self, values: Iterable[Any]) -> None:
        """Counts the storages of the tensors in `values` (for a DTensor, of the local tensor), none of them twice."""
        for storage in _storages(values):
            self._hold(storage)

    @property
    def own_bytes(self) -> int:
        """Live bytes without the storages that were excluded by `pass_on`."""
        return self.live - sum(self._sizes[key] for key in self._passed_on)

    def pass_on(self, values: Iterable[Any]) -> None:
        """Excludes the storages of the tensors in `values` from `own_bytes`, until they are freed."""
        self._passed_on.update(storage._cdata for storage in _storages(values) if storage._cdata in self._sizes)

    def repeat(self, left_bytes: int, most_bytes: int) -> None:
        """Counts a skipped action, which would leave `left_bytes` allocated and whose peak would be `most_bytes` above
        the bytes that are live now."""
        self.peak = max(self.peak, self.live + most_bytes)
        self.live += left_bytes

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._let_go, key)
        self._resized(key, storage.nbytes())

    def _resized(self, key: int, size: int) -> None:
        self.live += size - self._sizes[key]
        self._sizes[key] = size

    def _let_go(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
        self._passed_on.discard(key)

    def _mark(self, func: Any) -> None:
        if self.live > self.highest:
            self.highest = self.live
            if self.live > self.peak:
                self.peak, self.peak_at = self.live, str(func)

    def _resizing(self) -> Callable[..., None]:
        """Returns a storage `resize_` that also tracks the change of bytes: fully_shard frees and reallocates its
        buffers with `resize_`, which dispatch modes do not see."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            original(storage, size)
            if storage._cdata in self._sizes:
                self._resized(storage._cdata, storage.nbytes())

        return resize_

    def _silenced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.uncounted():
                return function(*args, **kwargs)

        return call


def _storages(values: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    """Yields the storages of the tensors among `values`; for a DTensor, the storage of its local tensor."""
    for value in values:
        local = value._local_tensor if isinstance(value, DTensor) else value
        if isinstance(local, torch.Tensor):
            yield local.untyped_storage()


def _metadata_functions() -> Iterator[tuple[Any, str]]:
    for owner in (ShardingPropagator, loss_ops):
        for name in ("_propagate_tensor_meta", "_propagate_tensor_meta_non_cached", "propagate_tensor_meta"):
            if hasattr(owner, name):
                yield owner, name


_METADATA = tuple(_metadata_functions())
