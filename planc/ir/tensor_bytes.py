"""Bytes of the tensors on a device when they are the most in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.diag.fast_dataclass import dataclass

InFlight = Sequence[Mapping[int, int]]
"""For each pipeline rank the microbatches in flight at its peak, by virtual stage."""


@dataclass(frozen=True, kw_only=True)
class TensorBytes:
    """Bytes of the tensors on one device, by kind, at the moment of a step when their sum is largest.

    Communicators, the runtime and fragmentation are not included.
    """

    params: float
    grads: float
    optimizer: float
    activations: float
    buffers: float
    moment: str
    """The moment in words, as in `backward of the loss`."""
    idle: float = 0.0
    """Bytes of other moments' tensors whose memory the allocator keeps and does not reuse; not in `total`."""

    @property
    def total(self) -> float:
        """Sum of all kinds (bytes)."""
        return self.params + self.grads + self.optimizer + self.activations + self.buffers


def during(moment: str, microbatches: int) -> str:
    """Return `moment` (a point of the step, in words) with the number of microbatches in flight.

    >>> during("backward of the loss", 2)
    'backward of the loss, 2 microbatches in flight'
    """
    return f"{moment}, {microbatches} microbatch{'es' if microbatches != 1 else ''} in flight"
