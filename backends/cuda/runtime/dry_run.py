"""The first step of a run on fake tensors and a fake process group, for `planc train --dry-run`."""

from __future__ import annotations

from typing import Any

from planc.backends.cuda.lower import lower
from planc.ir.plan import Plan
from planc.sharding import propagate


def rehearse(plan: Plan) -> dict[str, Any]:
    """What the first rank of the plan does in a step: its collectives and its peak memory. Loads torch."""
    from planc.backends.cuda.audit.trace import trace

    traced = trace(lower(propagate(plan)), 0)
    return {
        "collectives": [
            {"op": op, "axis": axis, "dtype": dtype, "count": total.count, "bytes": total.bytes}
            for (op, axis, dtype), total in sorted(traced.totals.items())
        ],
        "peak_bytes": traced.peak_bytes,
        "peak_at": traced.peak_at,
    }
