"""One instrument for training steps of any torch program, on fake tensors and fake ranks: what rank 0 sends, its FLOPs,
the bytes of its other ops, and the most that it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, library
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.norms import one_kernel_norms
from planc.backends.cuda.audit.observe import MATMULS, Observer, matmul_flops

NOTHING_READ = {"detach", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "split_with_sizes"}


class Figures(MemoryTracker):
    """Counts FLOPs of matmuls and the bytes that all other ops read and write."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self.observer, self.flops, self.other_bytes = observer, 0, 0
        self.of_ops: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        silent = self._metadata
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if made is NotImplemented or silent or func.namespace in ("c10d", "_c10d_functional"):
            return made
        name, given, left = func._opname, _plain((args, kwargs)), _plain(made)
        if name in MATMULS:
            self.flops += matmul_flops(name, args, made)
        elif name == "_grouped_mm":  # rows of each expert's group: both factors are matrices in a gradient of weights
            both = 2 * args[0].numel() * args[1].shape[-1]
            self.flops += both if args[1].dim() == 2 else 2 * made.numel() * args[0].shape[-1]
        elif name not in NOTHING_READ:
            writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
            here = {t.untyped_storage()._cdata for t in given}
            fresh = [t for t in left if t.untyped_storage()._cdata not in here]
            if fresh or writes:
                moved = sum(map(_bytes, (*fresh, *given, *given[: int(writes)])))
                self.other_bytes += moved
                self.of_ops[name] += moved
        return made

    def as_json(self) -> dict[str, Any]:
        """The figures: calls and payloads by operation and axis, TFLOP, GB and GiB."""
        sent = {
            f"{op} {axis} {dtype}": [calls, self.observer.payload[op, axis, dtype] / 1e9]
            for (op, axis, dtype), calls in self.observer.calls.items()
            if op != "matmul" and dtype != "int64" and self.observer.payload[op, axis, dtype] > 1e6
        }
        return {
            "sent": sent,
            "tflop": self.flops / 1e12,
            "other_gb": self.other_bytes / 1e9,
            "peak_gib": self.peak / 2**30,
            "of_ops_gb": {name: moved / 1e9 for name, moved in self.of_ops.most_common(12)},
        }


@contextmanager
def counted(*meshes: Any) -> Iterator[Figures]:
    """A context whose ops are counted; norms are one kernel in it, as on a device."""
    figures = Figures(Observer(*meshes))
    with figures, one_kernel_norms(figures):
        yield figures


def _plain(values: Any) -> list[Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, Tensor) and not isinstance(t, DTensor)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@library.custom_op("beside::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention as one op, for both programs: its output, and a number a row."""
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:-1], dtype=torch.float32)


@library.custom_op("beside::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of its inputs."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


@attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


attention.register_autograd(
    lambda ctx, grad, _: attention_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
)
