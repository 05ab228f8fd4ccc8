"""The model families, one file each; `parts/` has what they are put together from.

A family answers `models()` and `build(name, changes)`; one that reads Hugging Face configs has
`MODEL_TYPES` and `read_config(name, config)`. Both raise ValueError, in words for the user, for sizes
that make no such model.
"""

from __future__ import annotations

import importlib
import importlib.resources
import pkgutil
import re
from functools import cache
from types import ModuleType

from planc.ir.model import Model


@cache
def families() -> dict[str, ModuleType]:
    """Every family module of this folder by its name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        if info.ispkg:
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        found[module.FAMILY] = module
    return found


_SIZE = re.compile(r'^    "(\w+)": ', re.MULTILINE)


@cache
def model_names() -> dict[str, str]:
    """Every model's name, and the file of the family that builds it.

    Read from the tables of sizes as text: a plan needs one family, and loading all takes longer than
    everything else that checking it does.
    """
    folder = importlib.resources.files(__name__)
    texts = {item.name.removesuffix(".py"): item.read_text() for item in folder.iterdir() if item.name.endswith(".py")}
    return {name: file for file, text in sorted(texts.items()) for name in _SIZE.findall(text)}


def build_model(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of the model `name`.

    `changes` replaces sizes by name, as `model llama3_8b(layers = 4)` does; None: none. Raises KeyError for an unknown
    model, and ValueError for sizes that make none.
    """
    family = importlib.import_module(f"{__name__}.{model_names()[name]}")
    model: Model = family.build(name, changes)
    return model


def config_types() -> dict[str, ModuleType]:
    """For each `model_type` of a Hugging Face config, the family that reads it."""
    return {kind: module for module in families().values() for kind in getattr(module, "MODEL_TYPES", ())}
