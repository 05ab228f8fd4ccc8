"""The model families, one file each; `parts/` has the building blocks.

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
    """Return every model family, by the name of its file in this folder."""
    return {info.name: _family(info.name) for info in pkgutil.iter_modules(__path__) if not info.ispkg}


def _family(file: str) -> ModelFamily:
    found: ModelFamily = importlib.import_module(f"{__name__}.{file}").FAMILY
    return found


_SIZE = re.compile(r'^    "(\w+)": ', re.MULTILINE)


@cache
def model_names() -> dict[str, str]:
    """Return every model's name, with the file of the family that builds it.

    Parsed from the tables of sizes as text: a plan needs one family, and importing all of them takes longer than the
    rest of checking it.
    """
    folder = importlib.resources.files(__name__)
    texts = {item.name.removesuffix(".py"): item.read_text() for item in folder.iterdir() if item.name.endswith(".py")}
    return {name: file for file, text in sorted(texts.items()) for name in _SIZE.findall(text)}


def build_model(name: str, changes: dict[str, int] | None = None) -> Model:
    """Return the op graph of the model `name`.

    `changes` overrides sizes by name, as `model llama3_8b(layers = 4)` does. Raises KeyError for an unknown model, and
    ValueError for invalid sizes.
    """
    return _family(model_names()[name]).build(name, changes)


def config_types() -> dict[str, ModelFamily]:
    """Return the family that reads a Hugging Face config, by the config's `model_type`."""
    return {kind: family for family in families().values() for kind in family.model_types}
