"""The model families, one file each, which defines the constant `FAMILY`; `parts/` has the building blocks."""

from __future__ import annotations

import importlib
import importlib.resources
import pkgutil
import re
from functools import cache

from planc.catalog.parts.decoders import DECODERS, Decoder
from planc.catalog.parts.family import ModelFamily
from planc.ir.model import Model


@cache
def families() -> dict[str, ModelFamily]:
    """Return all model families. The keys are the names of their files, without `.py`."""
    return {info.name: _family(info.name) for info in pkgutil.iter_modules(__path__) if not info.ispkg}


def _family(file: str) -> ModelFamily:
    found: ModelFamily = importlib.import_module(f"{__name__}.{file}").FAMILY
    return found


_SIZE = re.compile(r'^    "(\w+)": ', re.MULTILINE)


@cache
def model_names() -> dict[str, str]:
    """Return the names of all models, each with the name of its family's file.

    The files are searched as text: importing every family takes longer than checking a plan, which needs only one.
    """
    folder = importlib.resources.files(__name__)
    texts = {item.name.removesuffix(".py"): item.read_text() for item in folder.iterdir() if item.name.endswith(".py")}
    return {name: file for file, text in sorted(texts.items()) for name in _SIZE.findall(text)}


def build_model(name: str, changes: dict[str, int] | None = None) -> Model:
    """Return the op graph of the model `name`, such as `llama3_8b`.

    `changes` replaces sizes, such as {"layers": 4}. Raises KeyError for an unknown model, ValueError for invalid sizes.
    """
    return _family(model_names()[name]).build(name, changes)


def config_types() -> dict[str, ModelFamily | Decoder]:
    """Return what reads Hugging Face configs, by the `model_type` of the config: the families, and the decoders that
    have no module of planc's own."""
    return {**DECODERS, **{kind: family for family in families().values() for kind in family.model_types}}
