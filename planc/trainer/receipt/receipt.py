"""The receipt of a run, `planc.receipt/1`: its plan, data, settings and results.

A field that was not measured is null. Two receipts that agree in the fields checked by `crosscheck` must have the same
losses up to rounding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from planc.diag import Diagnostic, PlanError, Span
from planc.files import read_json, write_atomically
from planc.ir.field_types import Line
from planc.ir.frozen import Frozen, first_mistake

MAX_BYTES = 1_000_000_000
MOST = 1e100
"""Largest number in a receipt: float32 ends at 3.4e38, and results computed from it must not overflow."""
"""Largest receipt that is read: losses of every step, and picks of every expert."""


class CompileActivity(Frozen):
    """Compiler activity of a run; see `session.CompileFacts`."""

    uncached: int | None = None
    scalar_reads: int | None = None
    hlo_sha256: str | None = None


class Measured(Frozen):
    """Figures of this run beside `losses`. Losses are in nats per token."""

    steps: int
    heldout_loss_first: float | None = None
    heldout_loss_last: float | None = None
    heldout_bits_per_byte: float | None = None
    """The last held-out loss in bits, where a token is a byte."""
    heldout_losses: dict[int, float] = Field(default_factory=dict)
    """By the number of steps done."""
    first_step_s: float
    """Seconds of the first step, compilation included."""
    step_time_s: float
    """Median of the steps after the first; of the first if it is the only one."""
    tokens_per_s: float
    """At the median step time, all devices together."""
    goodput_s: dict[str, float] | None = None
    """Wall-clock time by use, over all starts of the run; see `planc.trainer.telemetry.goodput`."""
    first_gradient_norms: dict[str, float] | None = None
    """Gradient norms of the first step by parameter, before clipping; None where the run began later or has none."""
    routing: dict[int, list[list[int]]] | None = None
    """Picks of each expert of each routed layer, by step; None where they were not counted."""
    start_s: float
    """From the worker's first line to the first step: imports, process group, weights."""


class Receipt(Frozen):
    """One run. `losses[i]` is the mean loss of step i + 1 before its update, unrounded; null
    where a step was skipped because its loss or gradient was no number."""

    format: Literal["planc.receipt/1"] = "planc.receipt/1"
    plan_sha256: Line
    target: Line
    runtime: Line
    versions: dict[Line, Line]
    mesh: dict[Line, int]
    seed: int
    init_sha256: Line
    data_sha256: Line
    tokens_per_step: int
    dtype: Line
    course: dict[str, Any] | None = None
    """The settings that bend the losses: learning rate, optimizer, batch; see `checkpoint.suits`."""
    features: tuple[Line, ...]
    losses: tuple[float | None, ...]
    grad_norms: tuple[float | None, ...]
    step_time_s: float
    peak_memory_gib: float | None
    compile: CompileActivity
    routing_flips: int | None
    collectives: list[dict[str, Any]] | None
    predicted: dict[str, float] | None
    measured: Measured
    goodput: float | None
    """The share of the run's wall-clock time, all its starts included, in which steps were taken that count."""

    def to_json(self) -> dict[str, Any]:
        """Return the receipt as plain JSON data, `planc.receipt/1`."""
        return self.model_dump(mode="json")

    def write(self, path: Path | str) -> None:
        """Write the receipt as JSON to `path` atomically. Raises OSError."""
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        write_atomically(Path(path), text + "\n")


def _is_finite(value: Any) -> bool:
    """True if every float in a JSON value is finite and at most MOST in magnitude."""
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, float) and not abs(inner) <= MOST:
            return False
        pending += inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    return True


def read_receipt(path: Path | str) -> Receipt:
    """Read the receipt at `path`. Raises PlanError (E1020) if the file cannot be read or is not a receipt."""
    try:
        values = read_json(Path(path), MAX_BYTES)
        if not isinstance(values, dict):
            raise ValueError("it is not an object")
        receipt = Receipt.model_validate(values)
        if not _is_finite(values):
            raise ValueError(f"a number in it is not finite, or beyond {MOST:g}")
        return receipt
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = first_mistake(error)
    raise PlanError([Diagnostic("E1020", f"{path} is no receipt: {reason}", Span(str(path), 1, 1, 1, 1))])
