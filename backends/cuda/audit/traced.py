"""The result of a trace on one rank of each pipeline stage. Loads no torch, so that cached results are read fast."""

from __future__ import annotations

from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.ir.audit import Total, Totals


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Collectives, memory and checks of one optimizer step, traced on one rank."""

    stage: int
    totals: Totals
    unparsed: tuple[str, ...]
    peak_bytes: int
    peak_at: str
    """The op after which the peak was reached."""
    flops: int = 0
    """FLOPs of the matmuls outside kernels."""
    counted: tuple[int, ...] = ()
    """Microbatches that were skipped on at least one virtual stage."""
    counted_blocks: int = 0
    """Number of blocks of the stage that were skipped."""
    placed: int = 0
    """Number of ranks of this stage whose rows of the batch and shards were checked."""
    misplaced: tuple[tuple[str, int], ...] = ()
    """(what, rank) for everything that a checked rank gets differently from its coordinates."""

    def to_json(self) -> dict[str, Any]:
        totals = [[*key, total.count, total.bytes] for key, total in self.totals.items()]
        return {
            "stage": self.stage,
            "totals": totals,
            "unparsed": list(self.unparsed),
            "peak_bytes": self.peak_bytes,
            "peak_at": self.peak_at,
            "flops": self.flops,
            "counted": list(self.counted),
            "counted_blocks": self.counted_blocks,
            "placed": self.placed,
            "misplaced": [list(row) for row in self.misplaced],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Traced:
        """Returns the trace that `to_json` wrote as `data`."""
        return cls(
            stage=data["stage"],
            totals={(op, axis, dtype): Total(count, size) for op, axis, dtype, count, size in data["totals"]},
            unparsed=tuple(data["unparsed"]),
            peak_bytes=data["peak_bytes"],
            peak_at=data["peak_at"],
            flops=data["flops"],
            counted=tuple(data["counted"]),
            counted_blocks=data["counted_blocks"],
            placed=data["placed"],
            misplaced=tuple((what, rank) for what, rank in data["misplaced"]),
        )


class UnlikeError(Exception):
    """Raised if microbatches or blocks that should be identical differ in their collectives or memory."""
