"""A propagated plan on a target, as far as its cost depends on it: collectives, attention, memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import Collective
from planc.ir.target import Target
from planc.ir.tensor_bytes import InFlight, TensorBytes

if TYPE_CHECKING:
    from planc.ir.backend import Backend
    from planc.ir.sharding import Sharded


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
        return self.backend.peak_memory(self.sharded, self.collectives, in_flight)


Realise = Callable[["Sharded"], Realised]
"""A target's answer for a propagated plan. Raises PlanError when the target refuses the plan."""
