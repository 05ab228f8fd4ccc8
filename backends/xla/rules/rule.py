"""What the rules share: rows, the mark of a rule, and where the compiler differs by platform."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

Rows = tuple[Collective, ...]
Platform = Literal["tpu", "host"]


def changed(row: Collective, rule: str, **fields: Any) -> Collective:
    """The row with other values, and the rule's name in `realised_by`."""
    return replace(row, **fields, realised_by=(*row.realised_by, rule))


def platform(sharded: Sharded) -> Platform:
    """A torus is of TPUs. Anything else is compiled as virtual CPU devices here (GPUs: untested)."""
    return "tpu" if sharded.plan.cluster.kind == "torus" else "host"
