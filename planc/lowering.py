"""Compiles a plan to the program of a target: propagates layouts, reports what the target does not support, and
emits."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal

from planc.diag.diagnostic import in_order
from planc.diag.errors import PlanError
from planc.ir.program import Program
from planc.ir.target import Target
from planc.sharding.propagate import propagate
from planc.sharding.shard_intervals import declared_layout

if TYPE_CHECKING:
    from planc.ir.backend import Backend, StateLayout
    from planc.ir.checked import CheckedPlan
    from planc.ir.sharding import Sharded
    from planc.ir.version import Version

RUNTIMES: dict[Target, tuple[str, ...]] = {"cuda": ("torch",), "xla": ("jax", "torch_xla")}
"""The runtimes of each target; the first is the default."""


def load_backend(target: Target, runtime: str = "") -> Backend:
    """Return the backend of a `runtime` of `target`, one of its `RUNTIMES`; "" is the first of them. No framework
    (torch, JAX) is loaded.

    This is the only function that imports a backend by name.
    """
    assert runtime in ("", *RUNTIMES[target]), f"{runtime} is no runtime of {target}"
    name = target if runtime in ("", RUNTIMES[target][0]) else runtime
    backend: Backend = import_module(f"planc.backends.{name}").BACKEND
    return backend


def backend_of(target: Target | None) -> Backend | None:
    """Return the backend of `target`'s default runtime; None if `target` is None."""
    return None if target is None else load_backend(target)


def state_layout(sharded: Sharded, target: Target | None) -> StateLayout:
    """Return the function that gives the layout of state between steps: of the program for `target`, or of the plan if
    None."""
    return declared_layout if target is None else load_backend(target).state_layout(sharded)


def lower_plan(
    checked: CheckedPlan, target: Target, runtime: str = "", version: Version | Literal["installed"] | None = None
) -> Program:
    """Return the program of a `checked` plan for `target`. No framework is loaded.

    `runtime` is one of `RUNTIMES` of the target; "" is the first of them. `version` is the framework version that the
    program is written for: one of the backend's `versions`; "installed" for the nearest to the one installed here; None
    for the version that planc pins. Raises PlanError if the backend does not support a sentence of the plan.
    """
    return lower_sharded(propagate(checked.for_planc), target, runtime, version)


def lower_sharded(
    sharded: Sharded, target: Target, runtime: str = "", version: Version | Literal["installed"] | None = None
) -> Program:
    """Return the program of `sharded`, a plan with propagated layouts. `target`, `runtime` and `version` are as in
    `lower_plan`. Raises PlanError if the backend does not support a sentence of the plan."""
    backend = load_backend(target, runtime)
    if version is not None:
        backend = backend.written_for(backend.nearest_installed() if version == "installed" else version)
    if refused := backend.refusals(sharded):
        raise PlanError(in_order(refused))
    return Program(backend=backend, sharded=sharded, text=backend.emit(sharded), target=backend.target)


def lower_to_train(checked: CheckedPlan, target: Target, runtime: str = "") -> Program:
    """Return the program of a `checked` plan for planc's trainer, a `runtime` of `target`, and the framework version
    installed here.

    Raises PlanError if the target does not support the plan, or has no implementation (`nn.Module` or the like) of its
    model. To run your own module, use `lower_plan`.
    """
    program = lower_plan(checked, target, runtime, "installed")
    if missing := program.backend.missing_module(checked.plan):
        raise PlanError(missing)
    return program
