"""The bundled JAX models, one family a file, found by the family's name."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planc.ir.model import Model
    from planc.ir.session import Settings


def family(name: str) -> ModuleType:
    """Return the module with `shapes(model)` and `build_loss(model, hooks)` of the model family `name`."""
    return importlib.import_module(f"{__name__}.{name}")


def loss_of(model: Model, hooks: Any, settings: Settings) -> Any:
    """Return the loss function of `model`. With experts, the function also returns the expert counts, and the gradient
    includes the load-balancing loss if `settings` ask for it."""
    build = family(model.family).build_loss
    return build(model, hooks, settings.balance_loss) if model.top_k else build(model, hooks)
