"""The tables of `planc bench`, one file each."""

from __future__ import annotations

import importlib
from types import ModuleType


def load_bench(name: str) -> ModuleType:
    """The module of a table, with `run(options)`."""
    return importlib.import_module(f"{__name__}.{name}")
