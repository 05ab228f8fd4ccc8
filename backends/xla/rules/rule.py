"""Helpers of the rules: rows, the mark of a rule, and differences between platforms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from planc.ir.collective import Collective
from planc.ir.model import EXPERTS, ROUTED
from planc.ir.sharding import Sharded

Rows = tuple[Collective, ...]
Platform = Literal["tpu", "host"]


def changed(row: Collective, rule: str, **fields: Any) -> Collective:
    """`row` with other values in `fields`, and the name of `rule` in `realised_by`."""
    return replace(row, **fields, realised_by=(*row.realised_by, rule))


def of_tokens(sharded: Sharded, row: Collective) -> bool:
    """True if `row` exchanges tokens with experts: as the program says, XLA adds nothing."""
    tensor = sharded.model.tensor.get(row.tensor)
    return row.carries == "activation" and tensor is not None and tensor.region == ROUTED


def of_experts(sharded: Sharded, row: Collective) -> bool:
    """True if `row` gathers an expert's parameter or reduces its gradient."""
    param = sharded.model.param.get(row.tensor)
    return row.carries in ("param", "grad") and param is not None and param.region == EXPERTS


def platform(sharded: Sharded) -> Platform:
    """The platform that `sharded` is compiled for: TPUs where its machine is a torus, else virtual CPU devices (GPUs:
    untested)."""
    return "tpu" if sharded.plan.cluster.has_tpus else "host"
