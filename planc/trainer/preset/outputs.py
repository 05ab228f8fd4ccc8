"""Restricts the output files that a preset names to the preset's folder, because presets may be untrusted, and protects
existing files."""

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
"""Keys of a preset for files or folders that are written."""
HELP = "name a place below it; with --checkpoint DIR checkpoints and metrics go to any folder of yours"


def misplaced(parts: PresetTables, preset: Path, text: str) -> list[Diagnostic]:
    """Return E1035 for each output in `parts` that is outside the folder of `preset`, and for a metrics file that would
    overwrite another file.

    `text` is the content of the preset, in which the keys are located.
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
    """Return `parts` without a checkpoint folder, for a run whose user gives another one."""
    checkpoint: Checkpoint = parts.checkpoint.model_copy(update={"folder": ""})
    return parts.model_copy(update={"checkpoint": checkpoint})


def _no_name(path: Path) -> str:
    """Return why the file system rejects the name of this path (such as its length); "" if the name is valid."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _is_below(folder: Path, value: str) -> bool:
    """True if `value` is a relative path that stays inside `folder` after symbolic links are resolved."""
    if Path(value).is_absolute() or not value.isprintable():
        return False
    root, place = Path(os.path.realpath(folder)), Path(os.path.realpath(folder / value))
    return place != root and place.is_relative_to(root)
