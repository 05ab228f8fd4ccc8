"""Bytes of the tensors on a device at the fullest moment of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.diag.fast_dataclass import dataclass

InFlight = Sequence[Mapping[int, int]]
"""For each pipeline rank the microbatches held at its fullest moment, by virtual stage."""


@dataclass(frozen=True, kw_only=True)
class TensorBytes:
    """Bytes of the tensors on one device at the fullest moment of the step, by part, for one pipeline rank.

    The communicators, the runtime and fragmentation are not among them.
    """

    params: float
    grads: float
    optimizer: float
    activations: float
    buffers: float
    moment: str
    """The moment in words, as in `backward of the loss`."""

    @property
    def total(self) -> float:
        """All parts (bytes)."""
        return self.params + self.grads + self.optimizer + self.activations + self.buffers


def during(moment: str, microbatches: int) -> str:
    """A moment of the step and the number of microbatches in flight then, as text.

    >>> during("backward of the loss", 2)
    'backward of the loss, 2 microbatches in flight'
    """
    return f"{moment}, {microbatches} microbatch{'es' if microbatches != 1 else ''} in flight"
