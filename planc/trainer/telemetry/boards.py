"""Writes the figures of a run to TensorBoard and Weights & Biases (offline), if the preset enables them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planc.diag import Diagnostic
from planc.trainer.preset.load import Preset
from planc.trainer.telemetry.events import Event, HeldOut, SaveDone, StepDone

STEP_FIGURES = ("loss", "grad_norm", "lr", "tokens_per_s", "mfu", "memory_gib", "step_s", "data_s")
Figures = Iterator[tuple[str, float]]


def figures(event: Event) -> Figures:
    """Yield (name, value) for every number in `event`, with the names that dashboards show."""
    if isinstance(event, StepDone):
        values = asdict(event)
        yield from ((f"train/{name}", values[name]) for name in STEP_FIGURES if values[name] is not None)
    elif isinstance(event, HeldOut):
        yield "held_out/loss", event.loss
    elif isinstance(event, SaveDone):
        yield from (("checkpoint/stall_s", event.stall_s), ("checkpoint/write_s", event.write_s))


class TensorBoard:
    """Writes events to a file with the writer of the package tensorboard."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        writer = import_module("tensorboard.summary.writer.event_file_writer")
        self._writer = writer.EventFileWriter(str(folder))

    def __call__(self, event: Event) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in figures(event)]
        if values:
            said = self._event(wall_time=time.time(), step=event.step, summary=self._summary(value=values))
            self._writer.add_event(said)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Writes an offline run with the package wandb: nothing is uploaded until the user runs `wandb sync`."""

    def __init__(self, folder: Path, project: str, settings: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._run = import_module("wandb").init(mode="offline", project=project, dir=str(folder), config=settings)

    def __call__(self, event: Event) -> None:
        if said := dict(figures(event)):
            self._run.log(said, step=event.step)

    def close(self) -> None:
        self._run.finish()


Board = TensorBoard | WeightsAndBiases


def boards(preset: Preset) -> list[Board]:
    """Return the dashboards that `preset` enables (TensorBoard, Weights & Biases), opened."""
    watch, folder = preset.parts.watch, preset.path.parent
    found: list[Board] = [TensorBoard(folder / watch.tensorboard)] if watch.tensorboard else []
    if watch.wandb:
        settings = preset.train.model_dump(mode="json")
        found.append(WeightsAndBiases(folder / watch.wandb, preset.path.stem, settings))
    return found


def missing_packages(preset: Preset) -> list[Diagnostic]:
    """Return E1009 for each dashboard of `preset` whose package is not installed."""
    asked = [name for name in ("tensorboard", "wandb") if getattr(preset.parts.watch, name)]
    return [
        Diagnostic(
            "E1009",
            f"[watch] {name} needs the package {name}, which is not installed",
            preset.at("watch", name),
            help="pip install 'planc[watch]'",
        )
        for name in asked
        if find_spec(name) is None
    ]
