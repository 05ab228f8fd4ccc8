"""The model families, one file each; `parts/` has what they are put together from.

Each file has one `FAMILY`.
"""

from __future__ import annotations

import importlib
import importlib.resources
import pkgutil
import re
from functools import cache

from planc.catalog.parts.family import ModelFamily
from planc.ir.model import Model


@cache
def families() -> dict[str, ModelFamily]:
    """The family of every file of this folder, by the file's name."""
    return {info.name: _family(info.name) for info in pkgutil.iter_modules(__path__) if not info.ispkg}


def _family(file: str) -> ModelFamily:
    found: ModelFamily = importlib.import_module(f"{__name__}.{file}").FAMILY
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
    return _family(model_names()[name]).build(name, changes)


def config_types() -> dict[str, ModelFamily]:
    """For each `model_type` of a Hugging Face config, the family that reads it."""
    return {kind: family for family in families().values() for kind in family.model_types}
