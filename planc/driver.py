"""The list of steps, and the library's front door."""
from __future__ import annotations
from pathlib import Path
from planc.diag.errors import PlanError
from planc.ir.plan import Plan
from planc.ir.program import Program
def load(source, *, set=None, target=""):
    from planc.strategies.build import build_file
    b = build_file(Path(source), set or {}, target)
    if b.plan is None:
        raise PlanError(b.diagnostics)
    return b.plan
def lower(plan, target="cuda"):
    from importlib import import_module
    from planc.sharding import propagate
    p = plan if isinstance(plan, Plan) else load(plan, target=target)
    return import_module(f"planc.backends.{target}.lower").lower(propagate(p))
