"""Reads a compiled plan back from JSON."""

from __future__ import annotations

from typing import Any

from planc.ir.frozen import read
from planc.ir.plan import FORMAT, Plan


def read_plan(data: dict[str, Any]) -> Plan:
    """Return the plan in `data`, the dictionary that `Plan.to_json` returns.

    Raises ValueError if a value does not match its field's type (`planc.ir.field_types`). Only planc's own processes
    exchange this form: a plan from elsewhere is text, which the compiler reads (`planc.trainer.preset.compiled`).
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    return read(Plan, {k: v for k, v in data.items() if k != "format"})
