"""The systems whose configuration planc reads or writes: one file each, with one `SYSTEM`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planc.interop.fields import System

ORDER = (
    "hugging_face",
    "megatron",
    "bridge",
    "torchtitan",
    "deepspeed",
    "accelerate",
    "maxtext",
    "automodel",
    "levanter",
)
"""Order in which they are listed; a file that could be of several is of the first."""


@cache
def systems() -> dict[str, System]:
    """Every system by its name."""
    found: dict[str, System] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        system = getattr(module, "SYSTEM", None)
        if system is not None:
            found[system.name] = system
    return dict(sorted(found.items(), key=lambda item: ORDER.index(item[0])))
