"""The readers of sentences, one file per verb, found by scanning this folder.

Each module has `VERBS`, `ORDER` (modules with a lower number are read first) and `read(sentence, draft)`, which adds a
sentence to the plan.
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
    """Return for each verb an index (verbs with a lower index are read first) and the function that reads its
    sentences."""
    found: dict[str, tuple[int, Read]] = {}
    for module in _modules():
        for verb in getattr(module, "VERBS", ()):
            assert verb not in found, verb
            found[verb] = (module.ORDER, module.read)
    return found


@cache
def _modules() -> tuple[ModuleType, ...]:
    return tuple(importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
