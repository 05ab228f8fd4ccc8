"""A compiled plan that is read back from JSON."""

from __future__ import annotations

from typing import Any

from planc.ir.frozen import read
from planc.ir.plan import FORMAT, Plan


def read_plan(data: dict[str, Any]) -> Plan:
    """Read the compiled form, the dictionary `data` that `Plan.to_json` gives.

    Every text in `data` matches its field's type (`planc.ir.field_types`) and every number is bounded; raises
    ValueError for anything else. Only planc itself writes this form, for its own processes: a plan that comes from a
    stranger is text, which the compiler reads (`planc.trainer.preset.compiled`).
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    return read(Plan, {k: v for k, v in data.items() if k != "format"})
