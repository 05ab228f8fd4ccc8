"""Lowering for torch: what the target refuses, and the program of what it does not."""

from __future__ import annotations

from planc.diag.errors import PlanError
from planc.ir.program import Program
from planc.ir.sharding import Sharded

from .emit import emit


def lower(sharded: Sharded) -> Program:
    """The program of a propagated plan. Raises PlanError if the target cannot do one of its sentences."""
    return Program(target="cuda", plan=sharded.plan, text=emit(sharded))
