"""Lowering: a plan's collectives as a target realises them, and its program.

One function loads a backend by name, and one lowers: propagate, refuse, emit. Backends are described by
`planc.ir.backend.Backend`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from planc.diag.diagnostic import in_order
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.ir.program import Program, Target
from planc.sharding import propagate

if TYPE_CHECKING:
    from planc.ir.backend import Backend
    from planc.ir.checked import CheckedPlan
    from planc.ir.collective import Collective
    from planc.ir.sharding import Sharded

RUNTIMES: dict[Target, tuple[str, ...]] = {"cuda": ("torch",), "xla": ("jax", "torch_xla")}
"""The runtimes of each target; the first is the default."""


def load_backend(target: Target, runtime: str = "") -> Backend:
    """The backend of a target's runtime; the default runtime when `runtime` is empty.

    The only place that imports a backend by name. It loads no framework.
    """
    assert runtime in ("", *RUNTIMES[target]), f"{runtime} is no runtime of {target}"
    name = target if runtime in ("", RUNTIMES[target][0]) else runtime
    backend: Backend = import_module(f"planc.backends.{name}").BACKEND
    return backend


@dataclass(frozen=True, kw_only=True)
class Realised:
    """A plan's layouts, and its collectives per device and optimizer step."""

    sharded: Sharded
    collectives: tuple[Collective, ...]


def realise_plan(checked: CheckedPlan, target: Target) -> Realised:
    """The collectives of a plan as a target issues them.

    Raises PlanError with the refusals when the target cannot do all sentences of the plan.
    """
    sharded, backend = propagate(checked), load_backend(target)
    if refused := backend.refusals(sharded):
        raise PlanError(refused)
    return Realised(sharded=sharded, collectives=backend.realise(sharded))


def lower_plan(checked: CheckedPlan, target: Target, runtime: str = "") -> Program:
    """The program of a plan for a target's runtime. No framework is loaded.

    Raises PlanError with the refusals when the backend cannot do all sentences of the plan.
    """
    sharded, backend = propagate(checked), load_backend(target, runtime)
    if refused := backend.refusals(sharded):
        raise PlanError(in_order(refused))
    return Program(backend, sharded, text=backend.emit(sharded))


def lower_to_train(checked: CheckedPlan, target: Target, runtime: str = "") -> Program:
    """`lower_plan` for a plan that planc itself runs: the target must have a module of the plan's model.

    Raises PlanError. `lower_plan` alone serves users who bring a module of their own.
    """
    program = lower_plan(checked, target, runtime)
    if missing := program.backend.missing_module(checked.plan):
        raise PlanError(missing)
    return program
