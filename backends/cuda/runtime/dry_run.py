"""Runs the first step on fake tensors and a fake process group, for `planc train --dry-run`."""

from __future__ import annotations

from typing import Any

from planc.ir.program_text import ProgramText


def dry_run(program: ProgramText) -> dict[str, Any]:
    """Returns the collectives and peak memory of a step on the first rank of `program`, traced on fake tensors. Loads
    torch."""
    from planc.backends.cuda.audit.trace import trace
    from planc.backends.cuda.audit.traced import UnlikeError

    try:
        traced = trace(program, 0)
    except UnlikeError:
        traced = trace(program, 0, whole=True)
    return {
        "collectives": [
            {"op": op, "axis": axis, "dtype": dtype, "count": total.count, "bytes": total.bytes}
            for (op, axis, dtype), total in sorted(traced.totals.items())
        ],
        "peak_bytes": traced.peak_bytes,
        "peak_at": traced.peak_at,
    }
