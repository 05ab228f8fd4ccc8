"""Helpers of the rules: replace fields of a row, and tell tokens, experts and platforms apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.model import EXPERTS, ROUTED
from planc.ir.sharding import Sharded

Rows = tuple[Collective, ...]
Platform = Literal["tpu", "host"]


def changed(row: Collective, rule: str, **fields: Any) -> Collective:
    """Return `row`, a collective, with other values in `fields`, and with the name of `rule` added to `realised_by`."""
    return replace(row, **fields, realised_by=(*row.realised_by, rule))


def in_dtype(row: Collective, rule: str, dtype: str, **fields: Any) -> Collective:
    """Return `row` sent as `dtype`, with other values in `fields`, and with `rule` added to `realised_by`."""
    sent_bytes = row.buffer_bytes / DTYPE_BYTES[row.dtype] * DTYPE_BYTES[dtype]
    return changed(row, rule, dtype=dtype, buffer_bytes=sent_bytes, **fields)


def of_tokens(sharded: Sharded, row: Collective) -> bool:
    """True if `row` exchanges tokens with experts: the program does so explicitly, and XLA adds nothing."""
    tensor = sharded.model.tensor.get(row.tensor)
    return row.carries == "activation" and tensor is not None and tensor.region == ROUTED


def of_experts(sharded: Sharded, row: Collective) -> bool:
    """True if `row` gathers an expert's parameter or reduces its gradient."""
    param = sharded.model.param.get(row.tensor)
    return row.carries in ("param", "grad") and param is not None and param.region == EXPERTS


def platform(sharded: Sharded) -> Platform:
    """Return the platform that `sharded` is compiled for: TPUs if the plan's cluster has them, else virtual CPU devices
    (GPUs are untested)."""
    return "tpu" if sharded.plan.cluster.has_tpus else "host"
