"""The bundled JAX models, one family a file, found by the family's name."""

from __future__ import annotations

import importlib
from types import ModuleType


def family(name: str) -> ModuleType:
    """The module with `shapes(model)` and `build_loss(model, hooks)` of a model family."""
    return importlib.import_module(f"{__name__}.{name}")
