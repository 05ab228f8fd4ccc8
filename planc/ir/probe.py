"""The small operations (probes) that `planc calibrate` times, and the processes that run them together."""

from __future__ import annotations

from dataclasses import asdict
from math import prod
from typing import Any, Literal, Protocol

from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import CollectiveOp

Kind = Literal["matmul", "stream", "attention", "attention_backward", "collective"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One operation to time. `sizes` are (m, n, k) of a matmul, (bytes,) of a stream, (sequences, heads, tokens,
    head_dim) of attention, or (group size, buffer bytes) of a collective."""

    kind: Kind
    sizes: tuple[int, ...]
    dtype: str = "fp32"
    op: CollectiveOp = "all_reduce"

    @property
    def name(self) -> str:
        if self.kind == "collective":
            return f"{self.op} over {self.sizes[0]}"
        return f"{self.kind} {self.dtype}"

    @property
    def scale(self) -> float:
        """Work of the operation: FLOPs of a matmul or of an attention forward, bytes of a stream or a collective."""
        if self.kind == "matmul":
            return 2.0 * prod(self.sizes)
        if self.kind in ("attention", "attention_backward"):
            return attention_flops(self.sizes)
        return float(self.sizes[-1])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sizes": list(self.sizes)}


def attention_flops(sizes: tuple[float, ...]) -> float:
    """Return the FLOPs of the forward of causal attention: two matmuls, of which the mask leaves half.

    `sizes` are (sequences, heads, tokens of a sequence, head_dim).

    >>> attention_flops((1, 1, 4, 8)) == 2 * (2 * 4 * 4 * 8) / 2
    True
    """
    sequences, heads, tokens, head_dim = sizes
    return 2.0 * sequences * heads * tokens * (tokens / 2) * 2 * head_dim


class Ranks(Protocol):
    """The processes that measure together; constructing an instance joins them."""

    first: bool
    """True on the process that reports for all."""
    count: int
    on_host: bool
    """True if the devices are this computer's processors: other work on them slows the measurement down."""

    def sum(self, value: float) -> float:
        """Return the sum of `value` (seconds or another unit) over all processes, on each of them. All must call it."""
        ...


class Prober(Protocol):
    """Times operations (probes) on one process. All ranks call it with the same probes in the same order."""

    def seconds(self, probe: Probe) -> float:
        """Return the seconds of one call of `probe`, on all devices at once: the fastest of several repetitions."""
        ...
