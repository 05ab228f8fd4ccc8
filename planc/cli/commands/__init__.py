"""One file per command: `ARGUMENTS` it takes and `run`, which prints and returns the exit status."""

from __future__ import annotations

import importlib
from types import ModuleType


def load_command(name: str) -> ModuleType:
    """The module of a command, with `arguments(parser)` and `run(options)`."""
    return importlib.import_module(f"{__name__}.{name}")
