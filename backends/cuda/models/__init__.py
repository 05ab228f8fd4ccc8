"""The bundled torch models, one family a file, imported by the family's name."""

from __future__ import annotations

import importlib
from types import ModuleType


def family(name: str) -> ModuleType:
    """Returns the module with `build(model)` of the model family `name`. Loads torch."""
    return importlib.import_module(f"{__name__}.{name}")
