"""Outputs that a preset names: below its own folder, as it may come from a stranger, and over no other file."""

from __future__ import annotations

import os
from pathlib import Path

from planc.diag import Diagnostic
from planc.trainer.preset.settings import Checkpoint, PresetTables
from planc.trainer.preset.toml_spans import Place, places, span_of
from planc.trainer.telemetry.metrics_file import may_replace

OUTPUTS: tuple[Place, ...] = (
    ("checkpoint", "folder"),
    ("watch", "metrics"),
    ("watch", "tensorboard"),
    ("watch", "wandb"),
    ("watch", "profile"),
)
"""Keys of a preset that name a file or folder to write."""
HELP = "name a place below it; with --checkpoint DIR checkpoints and metrics go to any folder of yours"


def misplaced(parts: PresetTables, preset: Path, text: str) -> list[Diagnostic]:
    """E1035 for each output in `parts` that lies outside the folder of `preset`, or whose metrics replace another file.

    `text` is the preset's own, for the places of its keys.
    """
    found = []
    spans = places(str(preset), text)
    for table, key in OUTPUTS:
        value: str = getattr(getattr(parts, table), key)
        span = span_of((table, key), spans, str(preset))
        if value and not _is_below(preset.parent, value):
            message = f"[{table}] {key} is not below the preset's folder: {value}"
            found.append(Diagnostic("E1035", message, span, help=HELP))
        elif value and (reason := _no_name(preset.parent / value)):
            message = f"[{table}] {key} is no name of a file here: {reason}"
            found.append(Diagnostic("E1035", message, span, help=HELP))
        elif value and key == "metrics" and not may_replace(preset.parent / value):
            message = f"[{table}] {key} would replace {value}, which is no metrics file"
            found.append(Diagnostic("E1035", message, span, help="name a file that is not there yet"))
    return found


def without_folder(parts: PresetTables) -> PresetTables:
    """`parts` with no folder for checkpoints, for a run whose user names another one."""
    checkpoint: Checkpoint = parts.checkpoint.model_copy(update={"folder": ""})
    return parts.model_copy(update={"checkpoint": checkpoint})


def _no_name(path: Path) -> str:
    """Why nothing can have this name, such as one of too many characters; empty where something can."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _is_below(folder: Path, value: str) -> bool:
    """True for a relative path that leads below the folder, whatever links stand on the way."""
    if Path(value).is_absolute() or not value.isprintable():
        return False
    root, place = Path(os.path.realpath(folder)), Path(os.path.realpath(folder / value))
    return place != root and place.is_relative_to(root)
