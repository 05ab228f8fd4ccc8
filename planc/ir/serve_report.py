"""The answer about a serve plan, `planc.serve/1`: what fits beside the weights, and what a sync moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planc.diag.diagnostic import Diagnostic
from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.served import ServedMemory, SharedPeaks


@dataclass(frozen=True, kw_only=True)
class ClassBytes(Value):
    """The bytes that move of one parameter, over all its layers. `pieces` are messages between ranks."""

    name: str
    tensors: int
    pieces: int
    local_bytes: float
    """Bytes that a rank of the generator has already, as its own shard of the trainer."""
    near_bytes: float
    """Bytes inside nodes."""
    far_bytes: float
    """Bytes between nodes."""


@dataclass(frozen=True, kw_only=True)
class SyncTime(Value):
    """Seconds of one transfer; links send and receive at the same time."""

    seconds: float
    bound_s: float
    """A lower bound: each node receives what it lacks once, each rank over all its links, and the trainer sends each
    byte once."""
    gathered_s: float
    """Seconds if every rank of the trainer gathers the whole model; a generator apart then receives it from rank 0."""
    near_s: float
    """Seconds of the busiest link inside a node."""
    far_s: float
    """Seconds of the busiest uplinks of a node."""
    start_s: float
    """Seconds of latencies, launches and the first bucket's way to the last rank."""
    program_s: tuple[float, float, float] | None
    """Least, middle and most seconds if a program such as those that were published moves the weights, a tensor after
    the other; None on machines for which none were published."""
    busiest: str
    """Name of the network level with the busiest link."""
    busiest_bytes: float
    """Bytes of that link in its busier direction: a rank's link in a node, or the uplinks of a node."""
    staging_bytes: float
    """The most bytes that one rank receives, and keeps beside its old weights until all have theirs."""


@dataclass(frozen=True, kw_only=True)
class SyncFacts(SyncTime):
    """One sync: all weights, in the dtype in which they travel."""

    dtype: str
    pieces: int
    local_bytes: float
    near_bytes: float
    far_bytes: float
    deepest: int
    """Messages in a row until a piece is at its last rank."""
    load_bytes: float
    """Bytes that the generator's ranks read, together, to load a checkpoint of the trainer instead."""
    changed_s: float | None
    """Seconds if only the changed elements travel, each with its index; None if the plan does not say how many."""
    classes: tuple[ClassBytes, ...]


@dataclass(frozen=True, kw_only=True)
class ServeReport(Value):
    """The answer of `planc check` and `planc sync` about a serve plan; None where a mistake forbids an answer."""

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
        facts = super(ServeReport, replace(self, diagnostics=())).to_json()
        return {"format": "planc.serve/1", **facts, "diagnostics": [d.to_json() for d in self.diagnostics]}
