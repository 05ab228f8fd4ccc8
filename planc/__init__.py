"""planc: a compiler for sharding plans.

`load`, `check`, `cost`, `lower` and `search` are the library; the command line calls the same functions.
Importing this package loads neither torch nor jax.
"""

from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

from planc.version import __version__ as __version__

_here = _Path(__file__).resolve().parent
if not (_here / "backends").is_dir() and (_here.parent / "pyproject.toml").is_file():
    __path__.append(str(_here.parent))  # a checkout without symbolic links

if TYPE_CHECKING:
    from planc.diag.errors import PlanError as PlanError
    from planc.driver import check as check
    from planc.driver import cost as cost
    from planc.driver import load as load
    from planc.driver import lower as lower
    from planc.driver import model_of as model_of
    from planc.driver import search as search
    from planc.graph.networks import graph_of as graph_of
    from planc.interop.importing import import_ as import_
    from planc.ir.plan import Plan as Plan
    from planc.ir.program import Program as Program
    from planc.ir.report import Report as Report

_HOMES = {
    "PlanError": "planc.diag.errors",
    "Plan": "planc.ir.plan",
    "Program": "planc.ir.program",
    "Report": "planc.ir.report",
    "check": "planc.driver",
    "cost": "planc.driver",
    "graph_of": "planc.graph.networks",
    "import_": "planc.interop.importing",
    "load": "planc.driver",
    "lower": "planc.driver",
    "model_of": "planc.driver",
    "search": "planc.driver",
}

__all__ = [
    "Plan", "PlanError", "Program", "Report",
    "check", "cost", "graph_of", "import_", "load", "lower", "model_of", "search",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'planc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
