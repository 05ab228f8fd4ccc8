"""`model from "config.json"`: a Hugging Face config of a family that planc knows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from planc.catalog import config_types
from planc.files import TooLargeError, read_bounded
from planc.ir.base import plain_name
from planc.language.draft import Draft
from planc.syntax.tree import Sentence, Word

VERBS = ("model_from",)
ORDER = 1
MAX_BYTES = 1_000_000


def read(sentence: Sentence, draft: Draft) -> None:
    word = sentence.node.words("STRING")[0]
    config = _config(word, draft)
    if config is None:
        return
    kind = config.get("model_type")
    family = config_types().get(kind) if isinstance(kind, str) else None
    if family is None:
        message = f"model_type {kind!r} is of no family that planc knows"
        draft.report("E0112", word.span, message, help=_suggested_type(config))
        return
    try:
        model, ignored = family.read_config(plain_name(Path(word.text.strip('"')).stem), config)
    except ValueError as error:
        draft.report("E0112", word.span, f"this config is not a model that planc compiles: {error}")
        return
    draft.model = replace(model, cause=draft.cause(sentence))
    if ignored:
        shown = ", ".join(ignored[:12]) + (", ..." if len(ignored) > 12 else "")
        draft.report("N0113", word.span, f"fields of the config that change nothing here: {shown}")


def _suggested_type(config: dict[str, Any]) -> str:
    """Suggestion for an unknown `model_type`. Some configs hold their language model's inside."""
    nested = config.get("text_config")
    kind = nested.get("model_type") if isinstance(nested, dict) else None
    if isinstance(kind, str) and kind in config_types():
        return f"its language model alone is a {kind}: save `text_config` as a file of its own"
    return f"known: {', '.join(config_types())}"


def _config(word: Word, draft: Draft) -> dict[str, Any] | None:
    """The file's object, from the plan's folder or below; reported when there is none."""
    name = word.text.strip('"')
    path = draft.inside(name, word.span)
    if path is None:
        return None
    try:
        unsaved = draft.unsaved.get(path)
        text = read_bounded(path, MAX_BYTES).decode("utf-8-sig") if unsaved is None else unsaved
        config = json.loads(text)
    except TooLargeError:
        config = None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        draft.report("E0104", word.span, f"{name} cannot be read: {reason}")
        return None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        draft.report("E0112", word.span, f"{name} is not a config: a JSON object of at most {MAX_BYTES // 1000} kB")
        return None
    return config
