"""`model from "config.json"`: a model from a Hugging Face config of a family that planc knows.

For `model from transformers "config.json"` and `model from code "package.module:build"`, the op graph was traced from
the model's code earlier and is stored beside the plan. No code runs here: only the stored file is read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from planc.catalog import config_types
from planc.catalog.parts.family import ModelFamily
from planc.files import TooLargeError, parse_json
from planc.ir.base import plain_name
from planc.ir.saved_model import MAX_BYTES as MAX_SAVED_BYTES
from planc.ir.saved_model import SavedModel, config_sha256, saved_path
from planc.language.draft import Draft
from planc.syntax.tree import Sentence, Word

VERBS = ("model_from",)
ORDER = 1
MAX_BYTES = 1_000_000
ORIGINS = ("transformers", "code")
OTHERS = 'others are read from their code: `model from transformers "..."`'
TEXT_OF = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral"}
"""The `model_type` of the text model of a config whose `text_config` does not say it."""
HOW_TO_READ = "`planc check --allow-code PLAN` runs the model's code once, without weights, and keeps what it finds"


def read(sentence: Sentence, draft: Draft) -> None:
    word = sentence.node.words("STRING")[0]
    if origin := sentence.node.words("NAME"):
        _read_saved(origin[0], word, sentence, draft)
        return
    config = _config(word, draft)
    if config is None:
        return
    outer = config
    if isinstance(nested := config.get("text_config"), dict):  # of a model of text and pictures
        config = {"model_type": TEXT_OF.get(str(config.get("model_type"))), **nested}
    kind = config.get("model_type")
    family = config_types().get(kind) if isinstance(kind, str) else None
    if not isinstance(family, ModelFamily) and _has_saved(word, draft):
        _read_saved(None, word, sentence, draft)
        return
    if family is None:
        message = f"model_type {kind!r} is of no family that planc knows"
        known = f"known: {', '.join(sorted(config_types()))}"
        draft.report("E0112", word.span, message, help=f"{known}; {OTHERS}")
        return
    try:
        model, ignored = family.read_config(_name(word, outer), config)
    except ValueError as error:
        draft.report("E0112", word.span, f"this config is not a model that planc compiles: {error}")
        return
    draft.model = replace(model, cause=draft.cause(sentence))
    if outer is not config:
        draft.report("N0113", word.span, f"the model is the config's `text_config` alone, a {kind}")
    if ignored:
        shown = ", ".join(ignored[:12]) + (", ..." if len(ignored) > 12 else "")
        draft.report("N0113", word.span, f"fields of the config that change nothing here: {shown}")


def _has_saved(word: Word, draft: Draft) -> bool:
    """True if an op graph for this config is stored beside the plan."""
    try:
        return bool(draft.content(draft.root / saved_path(word.text.strip('"')), MAX_SAVED_BYTES))
    except OSError:
        return False


def _read_saved(origin: Word | None, word: Word, sentence: Sentence, draft: Draft) -> None:
    """Add the stored op graph of a model's code to the draft; report a graph that is missing or was traced from another
    config."""
    source = word.text.strip('"')
    if origin is not None and origin.text not in ORIGINS:
        draft.unknown(origin, ORIGINS, "what a model is read from")
        return
    of_config = origin is None or origin.text == "transformers"
    config = _config(word, draft) if of_config else {}
    path = draft.inside(saved_path(source), word.span)
    if config is None or path is None:
        return
    try:
        saved = SavedModel.parse(draft.content(path, MAX_SAVED_BYTES))
    except FileNotFoundError:
        message = f"the op graph of {source} was not read from its code yet: there is no {saved_path(source)}"
        draft.report("E0118", word.span, message, help=HOW_TO_READ)
        return
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        draft.report("E0118", word.span, f"{saved_path(source)} cannot be used: {first}", help=HOW_TO_READ)
        return
    if of_config and saved.source_sha256 != config_sha256(config):
        message = f"{saved_path(source)} is of another config than {source}"
        draft.report("E0118", word.span, message, help=HOW_TO_READ)
        return
    draft.model = replace(saved.model, cause=draft.cause(sentence))


def _name(word: Word, config: dict[str, Any]) -> str:
    """Return the model's name: that of the file, or of a file `config.json` the model's name on its hub, or that of
    its folder."""
    path = Path(word.text.strip('"'))
    hub = config.get("_name_or_path")
    if path.stem != "config":
        return plain_name(path.stem)
    return plain_name((Path(hub).name if isinstance(hub, str) else "") or path.parent.name or path.stem)


def _config(word: Word, draft: Draft) -> dict[str, Any] | None:
    """Return the JSON object in the file that `word` names; None (reported) if it cannot be read."""
    name = word.text.strip('"')
    path = draft.inside(name, word.span)
    if path is None:
        return None
    try:
        config = parse_json(draft.content(path, MAX_BYTES).decode("utf-8-sig"), finite=False)
    except TooLargeError:
        config = None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        draft.report("E0104", word.span, f"{name} cannot be read: {reason}")
        return None
    except ValueError:
        config = None
    if not isinstance(config, dict):
        draft.report("E0112", word.span, f"{name} is not a config: a JSON object of at most {MAX_BYTES // 1000} kB")
        return None
    return config
