"""The systems whose configuration planc reads or writes. Each system is one file, with its `SYSTEM`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planc.interop.system import System

ORDER = (
    "megatron",
    "bridge",
    "torchtitan",
    "accelerate",
    "deepspeed",
    "maxtext",
    "automodel",
    "levanter",
    "hugging_face",
)
"""Order of listing and recognition: files that several systems recognise belong to the first. Files of Hugging Face's
Trainer accompany those of others."""


@cache
def systems() -> dict[str, System]:
    """Returns every system by name."""
    found: dict[str, System] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        system = getattr(module, "SYSTEM", None)
        if system is not None:
            found[system.name] = system
    return dict(sorted(found.items(), key=lambda item: ORDER.index(item[0])))
