"""Select the checkpoint to resume from, and verify it against the preset before a device is used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planc.diag import Diagnostic, PlanError, Span
from planc.trainer.checkpoint import directory as folders
from planc.trainer.checkpoint.compatible import misfits
from planc.trainer.checkpoint.manifest import Manifest
from planc.trainer.preset.load import Preset

NEWEST = -1
"""Value of `resume` that selects the newest checkpoint."""


@dataclass(frozen=True)
class Start:
    """The start of a run: the verified checkpoint to resume from (None: from scratch), and notes for the user."""

    path: Path | None
    notes: tuple[Diagnostic, ...] = ()


def start_of(preset: Preset, resume: int | None, data_sha256: str) -> Start:
    """Return the checkpoint from which a run starts. `resume` is a step, NEWEST, or None to start from scratch.
    `data_sha256` is the checksum of the run's data.

    Raises PlanError if a new run would mix with saved checkpoints, or if the checkpoint does not match `preset`.
    Changes nothing on disk.
    """
    span = Span(str(preset.path), 1, 1, 1, 1)
    folder = preset.checkpoints
    if folder is None:
        if resume is None:
            return Start(None)
        message = "there is nothing to resume from: [checkpoint] names no folder"
        raise PlanError([Diagnostic("E1015", message, span, help="give the run's folder: --checkpoint DIR")])
    found = folders.stored_checkpoints(folder)
    if resume is None:
        if found:
            raise PlanError([_there_already(folder, found[-1], span)])
        return Start(None)
    if not found and resume == NEWEST:
        return Start(None, (Diagnostic("N1028", f"{folder} holds no checkpoint yet: the run starts", span),))
    path, manifest, notes = _chosen(preset, folder, resume, span)
    if errors := misfits(preset, manifest, data_sha256, Span(str(path / "checkpoint.json"), 1, 1, 1, 1)):
        raise PlanError(errors)
    return Start(path, tuple(notes))


def _chosen(preset: Preset, folder: Path, resume: int, span: Span) -> tuple[Path, Manifest, list[Diagnostic]]:
    """Return the complete checkpoint that `resume` selects, its manifest, and notes for the user."""
    if resume == NEWEST and preset.checkpoint.on_damage == "previous":
        newest, manifest, notes = folders.newest_whole(folder)
        return newest.path, manifest, notes
    there = folders.stored_checkpoints(folder)
    wanted = [k.path for k in there if resume in (NEWEST, k.step)]
    if not wanted:
        steps = ", ".join(str(k.step) for k in there) or "none"
        message = f"{folder} holds no checkpoint of step {resume}"
        raise PlanError([Diagnostic("E1019", message, span, help=f"steps that are there: {steps}")])
    return wanted[-1], folders.verify(wanted[-1]), []


def _there_already(folder: Path, newest: folders.StoredCheckpoint, span: Span) -> Diagnostic:
    message = f"{folder} holds the checkpoints of a run up to step {newest.step}"
    help_text = "go on from them with --resume, or begin anew in another folder: --checkpoint DIR"
    return Diagnostic("E1016", message, span, help=help_text)
