"""Lowering a sharded plan to a JAX program, and what this target cannot do."""

from __future__ import annotations

from planc.backends.xla.emit.program import emit
from planc.backends.xla.refusals.plan import refusals
from planc.diag import PlanError
from planc.ir.program import Program
from planc.ir.sharding import Sharded

__all__ = ["lower", "refusals"]


def lower(sharded: Sharded) -> Program:
    """The program of a plan. Raises `PlanError` when the target refuses a sentence."""
    refused = refusals(sharded)
    if refused:
        raise PlanError(refused)
    return Program(target="xla", plan=sharded.plan, text=emit(sharded))
