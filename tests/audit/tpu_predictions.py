"""Bytes that each plan is predicted to send and to hold on its TPUs: a golden, written before the plan was compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planc.backends.xla import BACKEND
from planc.backends.xla.audit.predict import by_axis, predicted
from planc.ir.backend import run_by
from planc.ir.sharding import Sharded
from planc.ir.tensor_bytes import TensorBytes
from tests.plans import propagated

from .tpu_cases import CASES, plan_of

GOLDEN = Path(__file__).with_name("tpu_predictions.json")
FIRST = Path(__file__).with_name("tpu_first_predictions.json")
"""The predictions as they were before any of these plans was compiled; never rewritten."""


def peaks(sharded: Sharded) -> tuple[TensorBytes, ...]:
    """Tensors of the program of `sharded` at the fullest moment of each pipeline rank."""
    run = run_by(sharded, BACKEND)
    return BACKEND.peak_memory(run, BACKEND.realise(run), ())


def prediction(name: str) -> dict[str, Any]:
    """Bytes sent by axis and by operation, and the fullest moment."""
    sharded = propagated(plan_of(name))
    totals, held = predicted(sharded), peaks(sharded)[0]
    return {
        "wire_bytes": by_axis(totals),
        "peak_bytes": round(held.total),
        "fullest_at": held.moment,
        "rows": [
            f"{op} over {axis} in {dtype}: {total.count} calls, {total.bytes} bytes sent"
            for (op, axis, dtype), total in sorted(totals.items())
        ],
    }


def text() -> str:
    """All predictions, as the golden holds them."""
    return json.dumps({name: prediction(name) for name in CASES}, indent=1) + "\n"
