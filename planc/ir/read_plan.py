"""A compiled plan that is read back from JSON."""

from __future__ import annotations

from typing import Any

from planc.ir.frozen import read
from planc.ir.plan import FORMAT, Plan
from planc.ir.references import inconsistencies


def read_plan(data: dict[str, Any]) -> Plan:
    """Read the compiled form, the dictionary `data` that `Plan.to_json` gives.

    Every text in `data` matches its field's type (`planc.ir.field_types`), every number is bounded, and every name
    that is used is declared; raises ValueError for anything else. A plan that comes from a stranger is text, which the
    compiler reads (`planc.trainer.preset.compiled`).
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    plan = read(Plan, {k: v for k, v in data.items() if k != "format"})
    for mistake in inconsistencies(plan):
        raise ValueError(mistake)
    return plan
