"""Bytes that each plan is predicted to send and to hold on its TPUs: a golden, written before the plan was compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from planc.backends.xla import BACKEND
from planc.backends.xla.analysis import compiler_options
from planc.backends.xla.audit.predict import by_axis, predicted
from planc.backends.xla.rules import gather_by_all_reduce, gather_per_reader
from planc.ir.backend import run_by
from planc.ir.sharding import Sharded
from planc.ir.tensor_bytes import TensorBytes
from tests.plans import propagated

from .tpu_cases import CASES, plan_of

GOLDEN = Path(__file__).with_name("tpu_predictions.json")
FIRST = Path(__file__).with_name("tpu_first_predictions.json")
"""The predictions as they were before any of these plans was compiled; never rewritten."""


@contextmanager
def without_options() -> Iterator[None]:
    """The rules for a program as it was until it had options for its compiler and stated the rows that matmuls share;
    its torus was described to the compiler without the links that wrap around."""
    with (
        patch.object(compiler_options, "WITH_SPARSE_CORES", ()),
        patch.object(gather_per_reader, "gathered_rows", lambda sharded: ({}, {})),
        patch.object(gather_by_all_reduce, "goes_around", lambda sharded: False),
    ):
        yield


def as_compiled(found: dict[str, Any] | None) -> AbstractContextManager[None]:
    """The rules for the program of an answer of the compiler: with options if the answer lists them."""
    return nullcontext() if found is None or "options" in found else without_options()


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
