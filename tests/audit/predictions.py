"""Bytes that each audited layout is predicted to move and to hold: a golden, written before any trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planc.backends.cuda.audit.predict import predicted
from tests.plans import propagated

from .cases import CASES, plan_of

GOLDEN = Path(__file__).with_name("predictions.json")


def prediction(name: str) -> list[str]:
    """One line for each stage, operation, axis and dtype: calls and payload bytes."""
    sharded = propagated(plan_of(name))
    return [
        f"stage {stage}: {op} over {axis} in {dtype}: {total.count} calls, {total.bytes} bytes"
        for stage in range(sharded.plan.pipeline)
        for (op, axis, dtype), total in sorted(predicted(sharded, stage).items())
    ]


def text() -> str:
    """All predictions, as the golden holds them."""
    found: dict[str, Any] = {name: prediction(name) for name in CASES}
    return json.dumps(found, indent=1) + "\n"
