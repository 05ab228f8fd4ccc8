"""The findings of a trace on one rank of each pipeline stage. They load no torch: saved ones are read at once."""

from __future__ import annotations

from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.ir.audit import Total, Totals


@dataclass(frozen=True, kw_only=True)
class Traced:
    """One optimizer step of one rank."""

    stage: int
    totals: Totals
    unparsed: tuple[str, ...]
    peak_bytes: int
    peak_at: str
    """The operation after which that much was alive."""
    counted: tuple[int, ...] = ()
    """Microbatches that were counted like others, on one virtual stage at least."""
    counted_blocks: int = 0
    """Blocks that were counted like others of the stage."""
    placed: int = 0
    """Ranks whose rows and shards were looked at with this stage."""
    misplaced: tuple[tuple[str, int], ...] = ()
    """Things that a rank of them gets otherwise than its place in the mesh says, and the rank."""

    def to_json(self) -> dict[str, Any]:
        totals = [[*key, total.count, total.bytes] for key, total in self.totals.items()]
        return {
            "stage": self.stage,
            "totals": totals,
            "unparsed": list(self.unparsed),
            "peak_bytes": self.peak_bytes,
            "peak_at": self.peak_at,
            "counted": list(self.counted),
            "counted_blocks": self.counted_blocks,
            "placed": self.placed,
            "misplaced": [list(row) for row in self.misplaced],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Traced:
        """The trace that `to_json` gave."""
        return cls(
            stage=data["stage"],
            totals={(op, axis, dtype): Total(count, size) for op, axis, dtype, count, size in data["totals"]},
            unparsed=tuple(data["unparsed"]),
            peak_bytes=data["peak_bytes"],
            peak_at=data["peak_at"],
            counted=tuple(data["counted"]),
            counted_blocks=data["counted_blocks"],
            placed=data["placed"],
            misplaced=tuple((what, rank) for what, rank in data["misplaced"]),
        )


class UnlikeError(Exception):
    """Microbatches or blocks of a stage that would have to be alike are not."""
