"""One file per verb: what a sentence contributes to the plan. Found by scanning this folder.

A verb's module holds `VERBS`, `ORDER` (lower ones are read first) and `read(sentence, draft)`. Where the types of the
IR allow more than `read` can write, it has `mistakes(plan)`: a sentence for each thing of a compiled plan that no
sentence of this verb gives.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType

from planc.ir.plan import Plan
from planc.language.draft import Draft
from planc.syntax.tree import Sentence

Read = Callable[[Sentence, Draft], None]


@cache
def readers() -> dict[str, tuple[int, Read]]:
    """For each verb that planc compiles, its place in the reading order (an index, lowest first) and its reader."""
    found: dict[str, tuple[int, Read]] = {}
    for module in _modules():
        for verb in getattr(module, "VERBS", ()):
            assert verb not in found, verb
            found[verb] = (module.ORDER, module.read)
    return found


def mistakes(plan: Plan) -> Iterator[str]:
    """A sentence for each thing of a compiled `plan` that no sentence of the language could have put there."""
    for module in _modules():
        if hasattr(module, "mistakes"):
            yield from module.mistakes(plan)


@cache
def _modules() -> tuple[ModuleType, ...]:
    return tuple(importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
