"""The compiled form of a plan, read back: what the language could not have written is refused."""

from __future__ import annotations

from typing import Any

from planc.ir.plan import Plan
from planc.ir.read_plan import read_plan
from planc.language.verbs import mistakes


def read_compiled(data: dict[str, Any]) -> Plan:
    """The plan of `data`, the dictionary that `Plan.to_json` gives, which may come from a stranger.

    The types of its fields and the names that it uses are asked by `read_plan`, then each verb's module what no
    sentence of that verb could have put there. Raises ValueError for the first mistake.
    """
    plan = read_plan(data)
    for mistake in mistakes(plan):
        raise ValueError(mistake)
    return plan
