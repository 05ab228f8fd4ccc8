"""Checks that the framework which a program needs (torch, JAX) is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from planc.diag import Diagnostic, PlanError, Span
from planc.ir.target import Target

FRAMEWORKS = ("torch", "torchao", "torch_xla", "jax", "jaxlib", "optax", "numpy", "safetensors")
"""Modules that are missing in a compiler-only installation."""


@contextmanager
def framework_needed(target: Target, span: Span) -> Iterator[None]:
    """Return a context that raises E1009 (a PlanError, at `span`) if code in it imports a missing framework."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in FRAMEWORKS:
            raise
        raise missing_framework(error, target, span) from None


def need_framework(target: Target, span: Span) -> None:
    """Raise E1009 (a PlanError) unless the framework of a target is installed. The framework is not imported.

    Args:
        target: cuda needs torch, xla needs jax.
        span: the place in the plan to report the error at.
    """
    name = {"cuda": "torch", "xla": "jax"}[target]
    if find_spec(name) is None:
        raise missing_framework(ModuleNotFoundError(name=name), target, span)


def missing_framework(error: ModuleNotFoundError, target: Target, span: Span) -> PlanError:
    """Return E1009 at `span`: programs for `target` need the package in `error`, which is not installed."""
    message = f"the {target} target needs {error.name}, which is not installed"
    return PlanError([Diagnostic("E1009", message, span, help=f"pip install 'planc[{target}]'")])
