"""planc's own torch models: one file per model family."""

from __future__ import annotations

import importlib
from types import ModuleType


def family(name: str) -> ModuleType:
    """Returns the Python module of the model family `name`, which has the function `build(model)`. Loads torch."""
    return importlib.import_module(f"{__name__}.{name}")
