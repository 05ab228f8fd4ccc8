"""Measures the time of small operations in torch: matmuls, elementwise adds, attention, collectives. All ranks make the
same calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from planc.calibration.cpu_contention import ContentionMeter, own_s
from planc.ir.probe import Probe

if TYPE_CHECKING:
    import torch

WINDOWS = 5
"""Number of measurements of a probe, each of several consecutive calls; see `own_s`."""


class TorchRanks:
    """The ranks of a measurement, one process per device; see `planc.ir.probe.Ranks`."""

    def __init__(self, devices: int) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.on_host = not torch.cuda.is_available()
        dist.init_process_group("gloo" if self.on_host else "nccl", world_size=devices)
        self.device = "cpu" if self.on_host else torch.device("cuda", torch.cuda.current_device())
        self.first, self.count = dist.get_rank() == 0, devices

    def sum(self, value: float) -> float:
        """Returns the sum of `value` over all ranks."""
        import torch
        import torch.distributed as dist

        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total.item())


class TorchProber:
    """Measures operations on one rank, in windows of about `window_s` seconds. For each group size that divides the
    number of ranks, it creates a process group of neighbouring ranks."""

    def __init__(self, window_s: float, ranks: TorchRanks) -> None:
        import torch.distributed as dist

        self.window_s, self.ranks = window_s, ranks
        self.device = ranks.device
        self.groups: dict[int, Any] = {}
        world, rank = dist.get_world_size(), dist.get_rank()
        for size in (n for n in range(2, world + 1) if world % n == 0):
            for first in range(0, world, size):
                group = dist.new_group(list(range(first, first + size)))
                if first <= rank < first + size:
                    self.groups[size] = group

    def seconds(self, probe: Probe) -> float:
        """Returns the seconds of one call of `probe` on the slowest rank, less the time lost to other processes."""
        call = self._call(probe)
        call()
        count = max(1, int(self.window_s / max(1e-7, self._window(call, 1))))
        meter, cpu_s = ContentionMeter(), time.process_time()
        windows = [self._window(call, count) / count for _ in range(WINDOWS)]
        return own_s(windows, meter.share_beside(self.ranks, time.process_time() - cpu_s))

    def _window(self, call: Callable[[], object], count: int) -> float:
        """Returns the seconds of `count` calls on the slowest rank, after a barrier."""
        import torch
        import torch.distributed as dist

        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=self.device)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return float(taken.item())

    def _call(self, probe: Probe) -> Callable[[], object]:
        import torch
        import torch.nn.functional as F

        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[probe.dtype]
        if probe.kind == "matmul":
            m, n, k = probe.sizes
            x, weight = self._zeros(m, k, dtype=dtype), self._zeros(n, k, dtype=dtype)
            return lambda: F.linear(x, weight)
        if probe.kind == "stream":
            a, b = (self._zeros(probe.sizes[0] // 4, dtype=dtype) for _ in range(2))
            out = torch.empty_like(a)
            return lambda: torch.add(a, b, out=out)
        if probe.kind == "attention":
            sequences, heads, tokens, width = probe.sizes
            q, k_, v = (self._zeros(sequences, heads, tokens, width, dtype=dtype) for _ in range(3))
            return lambda: F.scaled_dot_product_attention(q, k_, v, is_causal=True)
        if probe.kind == "attention_backward":
            sequences, heads, tokens, width = probe.sizes
            inputs = [self._zeros(sequences, heads, tokens, width, dtype=dtype).requires_grad_() for _ in range(3)]
            made = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], is_causal=True)
            gradient = torch.zeros_like(made)
            return lambda: torch.autograd.grad(made, inputs, gradient, retain_graph=True)
        return self._collective(probe)

    def _collective(self, probe: Probe) -> Callable[[], object]:
        """Returns a function that runs the collective `probe`; its larger buffer (input or output) has the bytes of the
        probe."""
        import torch.distributed as dist

        size, buffer = probe.sizes
        group = self.groups[size]
        # fp32 elements, rounded down to a multiple of the group size.
        large = self._zeros(max(1, buffer // 4 // size) * size)
        small, other = large[: large.numel() // size].clone(), large.clone()
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(large, group=group),
            "all_gather": lambda: dist.all_gather_into_tensor(large, small, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(small, large, group=group),
            "all_to_all": lambda: dist.all_to_all_single(other, large, group=group),
        }
        return calls[probe.op]

    def _zeros(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns a tensor of zeros, so that sums of it stay finite."""
        import torch

        return torch.zeros(shape, dtype=dtype or torch.float32, device=self.device)
