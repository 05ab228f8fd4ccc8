"""What the trainer asks a backend for, by its folder's name: the program and the runtime.

`runtime` is one of the target's RUNTIMES; empty: the first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from planc.backends.common.bundled import not_bundled
from planc.checks import check_plan
from planc.diag import Diagnostic, PlanError, Span
from planc.diag.diagnostic import has_errors, in_order
from planc.ir.plan import Plan
from planc.ir.program import Program, Target
from planc.sharding import propagate

if TYPE_CHECKING:
    from planc.ir.session import Runtime


ONE_PROCESS: frozenset[Target] = frozenset({"xla"})
"""Targets whose runtime drives all devices of a machine from one process."""


RUNTIMES: dict[Target, tuple[str, ...]] = {"cuda": ("torch",), "xla": ("jax", "torch_xla")}
"""What runs a target's programs; the first unless another is asked for."""


def folder(target: Target, runtime: str = "") -> str:
    """The folder of backends with a runtime's lowering: its own, or its target's."""
    return target if runtime in ("", RUNTIMES[target][0]) else runtime


def processes(plan: Plan, target: Target) -> int:
    """Processes that a run on this machine takes."""
    return 1 if target in ONE_PROCESS else plan.mesh.devices


def program(plan: Plan, target: Target, runtime: str = "") -> Program:
    """The emitted program; no framework is loaded.

    Raises PlanError for what `planc lower` would refuse: a plan embedded by another version of planc
    may be one that this version knows to be wrong, or that the target cannot do.
    """
    found = check_plan(plan)
    if has_errors(found):
        raise PlanError(in_order(found))
    sharded, lowering = propagate(plan), import_module(f"planc.backends.{folder(target, runtime)}.lower")
    refused: list[Diagnostic] = list(lowering.refusals(sharded))
    if has_errors(refused):
        raise PlanError(in_order(refused))
    lowered: Program = lowering.lower(sharded)
    return lowered


def trainable(plan: Plan, target: Target, runtime: str = "") -> Program:
    """The program of a plan that planc is to train: its model must be one the target has a module for.

    Raises PlanError. A program may be lowered for other models too: the user brings the module.
    """
    lowered = program(plan, target, runtime)
    if missing := not_bundled(plan, target):
        raise PlanError(missing)
    return lowered


def runtime(target: Target, runtime: str = "") -> Runtime:
    """The backend's runtime module; only a worker process asks for it."""
    return cast("Runtime", import_module(f"planc.backends.{folder(target, runtime)}.runtime.start_up"))


def missing_framework(error: ModuleNotFoundError, target: Target, span: Span) -> PlanError:
    """An extra that is not installed, as a finding."""
    message = f"the {target} target needs {error.name}, which is not installed"
    return PlanError([Diagnostic("E1009", message, span, help=f"pip install 'planc[{target}]'")])
