"""The answer about a serve plan, `planc.serve/1`: what fits beside the weights, and what a sync moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planc.diag.diagnostic import Diagnostic
from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.served import ServedMemory, SharedPeaks


@dataclass(frozen=True, kw_only=True)
class SyncClass(Value):
    """The bytes that move of one parameter, over all its layers. `pieces` are messages between ranks."""

    name: str
    tensors: int
    pieces: int
    local_bytes: float
    """Bytes that a rank of the generator has already, as the trainer's."""
    near_bytes: float
    """Bytes inside nodes."""
    far_bytes: float
    """Bytes between nodes."""


@dataclass(frozen=True, kw_only=True)
class SyncFacts(Value):
    """One sync: all weights, in the dtype in which they travel."""

    dtype: str
    seconds: float
    bound_s: float
    """No way is faster: each rank and node receives what it lacks once."""
    gathered_s: float
    """Every rank of the trainer gathers all weights, and rank 0 broadcasts them to a generator apart."""
    near_s: float
    far_s: float
    start_s: float
    busiest: str
    """Network level of the busiest link."""
    busiest_bytes: float
    pieces: int
    local_bytes: float
    near_bytes: float
    far_bytes: float
    staging_bytes: float
    """The most bytes that one rank receives, and holds beside its old weights until all ranks have theirs."""
    deepest: int
    """Messages in a row until a piece is at its last rank."""
    changed_s: float | None
    """Seconds if only the changed elements travel, each with its index; None if the plan does not say how many."""
    classes: tuple[SyncClass, ...]


@dataclass(frozen=True, kw_only=True)
class ServeReport(Value):
    """The answer of `planc check` and `planc sync` about a serve plan; None where a mistake forbids an answer."""

    format: str = "planc.serve/1"
    plan: str | None
    trainer: str | None
    colocated: bool | None = None
    devices: int | None = None
    replicas: int | None = None
    weights: str | None = None
    cache_dtype: str | None = None
    memory: ServedMemory | None = None
    peaks: SharedPeaks | None = None
    """The peaks of a colocated generator and its trainer."""
    prefill_s: float | None = None
    """A roofline: one pass over the prompts of all requests of a replica."""
    decode_s: float | None = None
    """A roofline: one token of every request of a replica."""
    sync: SyncFacts | None = None
    ok: bool
    diagnostics: tuple[Diagnostic, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `planc.serve/1`."""
        plain = replace(self, diagnostics=())
        return {**super(ServeReport, plain).to_json(), "diagnostics": [d.to_json() for d in self.diagnostics]}
