"""Lowering for torch: the program of a propagated plan, if the target can do all of its sentences."""

from __future__ import annotations

from planc.backends.cuda.emit.program import emit
from planc.backends.cuda.refusals.plan import refusals
from planc.diag.errors import PlanError
from planc.ir.program import Program
from planc.ir.sharding import Sharded

__all__ = ["lower", "refusals"]


def lower(sharded: Sharded) -> Program:
    """The program. Raises PlanError with the refusals, if there are any."""
    found = refusals(sharded)
    if found:
        raise PlanError(found)
    return Program(target="cuda", plan=sharded.plan, text=emit(sharded))
