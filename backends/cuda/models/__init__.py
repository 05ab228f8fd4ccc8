"""The bundled torch models, one family a file, found by the family's name."""

from __future__ import annotations

import importlib
from types import ModuleType


def family(name: str) -> ModuleType:
    """The module with `build(model)` of the model family `name`. Loads torch."""
    return importlib.import_module(f"{__name__}.{name}")
