"""Chooses the Python interpreter for the worker of a runtime: the current one, or that of the runtime's environment.

torch_xla needs another version of torch, so it has its own environment, made by `make torch-xla`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from planc.diag import Diagnostic, PlanError, Span

OWN = {"torch_xla": ".venv-torch-xla"}
"""Runtimes with an environment of their own, and its conventional folder beside planc: a program of the working
directory may be a stranger's."""


def python_of(runtime: str, given: Path | None, span: Span) -> str:
    """Return the path of the Python interpreter for the worker of `runtime`: `given` if the user chose one. Raises
    PlanError (E1009) if it does not exist."""
    if given is not None:
        if not given.is_file():
            raise _missing(runtime, f"{given} is not there", span)
        return str(given.absolute())
    if runtime not in OWN or find_spec(runtime) is not None:
        return sys.executable
    python = Path(__file__).resolve().parents[3] / OWN[runtime] / "bin" / "python"
    if python.is_file():
        return str(python)
    raise _missing(runtime, f"there is no {OWN[runtime]} here", span)


def _missing(runtime: str, why: str, span: Span) -> PlanError:
    message = f"the {runtime} runtime needs an environment of its own, and {why}"
    help_text = f"`make {runtime.replace('_', '-')}` makes it; --python PATH names another"
    return PlanError([Diagnostic("E1009", message, span, help=help_text)])
