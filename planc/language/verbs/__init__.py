"""The readers of the verbs, one file each: what a sentence adds to the plan. The files are found by scanning this
folder.

A verb's module has `VERBS`, `ORDER` (modules with a lower number are read first) and `read(sentence, draft)`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from types import ModuleType

from planc.language.draft import Draft
from planc.syntax.tree import Sentence

Read = Callable[[Sentence, Draft], None]


@cache
def readers() -> dict[str, tuple[int, Read]]:
    """Return for each verb its index in the order of reading (the lowest is read first) and the function that reads
    it."""
    found: dict[str, tuple[int, Read]] = {}
    for module in _modules():
        for verb in getattr(module, "VERBS", ()):
            assert verb not in found, verb
            found[verb] = (module.ORDER, module.read)
    return found


@cache
def _modules() -> tuple[ModuleType, ...]:
    return tuple(importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
