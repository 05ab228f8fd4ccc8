"""A propagated plan on a target, as far as its cost depends on it: collectives, attention, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import Collective
from planc.ir.target import Target

if TYPE_CHECKING:
    from planc.ir.backend import Backend
    from planc.ir.model import Op
    from planc.ir.sharding import Sharded

InFlight = Sequence[Mapping[int, int]]
"""For each pipeline rank the microbatches held at its fullest moment, by virtual stage."""


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """The attention kernel of a program, for the time that its scores take.

    `forward_bytes` and `backward_bytes` are read and written in device memory for each score, by the products too;
    0: a fused kernel, which stores no score. `replay_bytes` is what the backward reads and writes besides to make
    the probabilities again where the forward's are gone.
    """

    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    replay_bytes: float = 0.0
    windows_by_mask: bool = False
    """A window of tokens is a mask over scores that are all computed, and no shorter loop."""
    repeats_keys: bool = False
    """Grouped keys and values are written out once for each query head before the kernel reads them."""
    pads_values: bool = False
    """Values that are narrower than keys are padded with zeros to their width, and multiplied so."""
    repeats_windowed_keys: bool = False
    """The same where attention has a window."""

    def repeats(self, op: Op) -> bool:
        """True if keys and values of the attention `op` are written out for each query head, if they are grouped."""
        return self.repeats_keys or (self.repeats_windowed_keys and op.window > 0)

    @property
    def stores_scores(self) -> bool:
        """True unless the kernel is fused."""
        return self.forward_bytes > 0


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


@dataclass(frozen=True, kw_only=True)
class Realised:
    """A plan as a target's program runs it. The target refuses no sentence of it."""

    backend: Backend
    sharded: Sharded
    """The layouts, with the program's kernel of attention."""

    @property
    def target(self) -> Target:
        """The target whose program it is."""
        return self.backend.target

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of the program, for each device and optimizer step."""
        return self.backend.realise(self.sharded)

    def peak_memory(self, in_flight: InFlight) -> tuple[TensorBytes, ...]:
        """Tensors of each pipeline rank at its fullest moment (bytes, by part), from its microbatches `in_flight`."""
        return self.backend.peak_memory(self, in_flight)


Realise = Callable[["Sharded"], Realised]
"""A target's answer for a propagated plan. Raises PlanError when the target refuses the plan."""
