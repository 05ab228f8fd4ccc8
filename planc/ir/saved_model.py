"""The op graph of a user's model as a file next to the plan, so that checks need not run the model's code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.files import parse_json, write_atomically
from planc.ir.base import Value
from planc.ir.field_types import Line
from planc.ir.model import Model
from planc.ir.plain_values import read_noun
from planc.ir.references import model_inconsistencies

FORMAT = "planc-model/1"
MAX_BYTES = 4_000_000
"""Limit on the file size (bytes); the op graph of a model of 100 layers of four kinds takes 60 kB."""


@dataclass(frozen=True, kw_only=True)
class SavedModel(Value):
    """The op graph of a user's model, and where it comes from.

    >>> from planc.catalog import build_model
    >>> kept = SavedModel(made_from="a class of mine", source_sha256="", model=build_model("llama_tiny"))
    >>> SavedModel.parse(kept.text()) == kept
    True
    """

    made_from: Line
    """The class, and the package with its version."""
    source_sha256: Line
    """The digest of the config that the class was built with; "" if there is none."""
    model: Model

    def text(self) -> str:
        """Return the text of the file, with a digest of its content."""
        plain = self.to_json()
        return json.dumps({"format": FORMAT, "sha256": _digest(plain), **plain}, indent=1, sort_keys=True) + "\n"

    def write(self, path: str | Path) -> None:
        """Write this model to the file at `path` atomically."""
        write_atomically(Path(path), self.text())

    @classmethod
    def parse(cls, text: str | bytes) -> SavedModel:
        """Return the op graph in a file with content `text`. Raises ValueError if planc did not write the file, or if
        somebody changed it."""
        plain = parse_json(text)
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        content: dict[str, Any] = {k: v for k, v in plain.items() if k not in ("format", "sha256")}
        if plain.get("sha256") != _digest(content):
            raise ValueError("its content does not have the sum that stands in it: it was changed by hand")
        kept = read_noun(cls, content)
        for mistake in model_inconsistencies(kept.model):
            raise ValueError(mistake)
        return kept


def saved_path(source: str) -> str:
    """Return the path of the file with the op graph of a model, relative to the plan's folder. `source` is the path of
    a config, or `package.module:function`.

    >>> saved_path("configs/olmo.json"), saved_path("mine.models:build")
    ('configs/olmo.model.json', 'mine.models.build.model.json')
    """
    stem = source.removesuffix(".json") if source.endswith(".json") else source.replace(":", ".")
    return f"{stem}.model.json"


def config_sha256(config: dict[str, Any]) -> str:
    """Return the SHA-256 digest of the fields in `config`, which does not depend on their order."""
    return _digest(config)


def _digest(plain: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
