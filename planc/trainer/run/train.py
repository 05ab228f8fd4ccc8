"""`planc train` on this machine: checks the preset, starts the workers, reads the receipt.

Runs over several machines are started by torchrun, Slurm or Kubernetes, from the files that `planc lower --launch`
writes; they run the same worker.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from planc.checks import check_plan
from planc.diag import Diagnostic, PlanError, Span
from planc.ir.target import Target
from planc.lowering import lower_to_train
from planc.trainer.checkpoint.resume import start_of
from planc.trainer.data.sources import source_of
from planc.trainer.preset.load import Preset, load_preset
from planc.trainer.preset.runtime_limits import beyond
from planc.trainer.receipt.receipt import Receipt, read_receipt
from planc.trainer.run import launch
from planc.trainer.run.elastic import fitted
from planc.trainer.run.environment import python_of
from planc.trainer.run.heartbeat import MARK as HEARTBEAT
from planc.trainer.run.heartbeat import Watchdog
from planc.trainer.run.loop import PreemptedError
from planc.trainer.run.worker import WorkerArguments, first_values
from planc.trainer.telemetry.boards import missing_packages
from planc.trainer.telemetry.events import MARK, Event, decode
from planc.trainer.telemetry.reporter import EVENTS, PREDICTED, metrics_path

MOST_PROCESSES = 64
"""Maximum number of ranks on one machine; larger plans are meant for a cluster."""


class TrainingError(PlanError):
    """Raised if a worker fails. `output` is all the output of the rank that failed."""

    def __init__(self, diagnostic: Diagnostic, output: str) -> None:
        super().__init__([diagnostic])
        self.output = output


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start, as `--dry-run` prints it. `notes` are warnings and notes for the user."""

    preset: Preset
    target: Target
    steps: int
    processes: int
    notes: tuple[Diagnostic, ...]
    start: Path | None = None
    """The checkpoint from which to resume."""
    python: str = sys.executable
    """Interpreter of the workers."""


def prepare(
    preset: Path | str,
    target: Target,
    *,
    steps: int | None = None,
    single: bool = False,
    checkpoint: Path | str | None = None,
    resume: int | None = None,
    runtime: str = "",
    python: Path | None = None,
    dry: bool = False,
    devices: int | None = None,
) -> Prepared:
    """Read the preset, lower its plan and verify the checkpoint to resume from. Nothing is started and nothing on disk
    changes.

    `checkpoint` is the folder to save in, `resume` the step to resume from, or NEWEST, and `python` the interpreter of
    a runtime with an environment of its own. With `dry`, the plan may need more devices than a machine has, because no
    rank is started. Raises PlanError for a run that cannot start.
    """
    loaded = fitted(load_preset(preset, checkpoint), None if single else devices)
    program = lower_to_train(check_plan(loaded.plan), target, runtime)
    count = 1 if single else launch.processes(loaded.plan, program.backend)
    span = Span(str(loaded.path), 1, 1, 1, 1)
    errors = [
        *([] if dry else _too_many(loaded.plan.mesh.devices, single, span)),
        *_unfit_data(loaded, span),
        *_unwritable(loaded.checkpoints, span),
        *beyond(runtime, loaded, single, span),
        *missing_packages(loaded),
    ]
    if errors:
        raise PlanError(errors)
    first_values(loaded)
    start = start_of(loaded, resume, source_of(loaded).sha256)
    notes = (*loaded.notes, *start.notes, *([] if dry else _oversubscribed(count, span)))
    chosen = python_of(runtime, python, span)
    return Prepared(loaded, target, steps or loaded.train.steps, count, notes, start.path, chosen)


def train(
    preset: Path | str,
    target: Target,
    *,
    steps: int | None = None,
    receipt: Path | str | None = None,
    single: bool = False,
    checkpoint: Path | str | None = None,
    resume: int | None = None,
    runtime: str = "",
    python: Path | None = None,
    devices: int | None = None,
    predicted: Mapping[str, float] | None = None,
    on_event: Callable[[Event], None] | None = None,
    timeout_s: float | None = None,
) -> Receipt:
    """Train the preset's compiled plan on this machine. Return the receipt, which is also written to `receipt`.

    Raises PlanError for a preset that cannot run, TrainingError if a worker fails, and KeyboardInterrupt on SIGINT.
    SIGTERM raises KeyboardInterrupt too if no checkpoints are saved; otherwise the ranks save their state, and
    PreemptedError is raised. No process is left behind in any case.
    """
    ready = prepare(
        preset,
        target,
        steps=steps,
        single=single,
        checkpoint=checkpoint,
        resume=resume,
        runtime=runtime,
        python=python,
        devices=devices,
    )
    with tempfile.TemporaryDirectory(prefix="planc-train-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "receipt.json"
        saving_in = Path(checkpoint) if checkpoint else None
        chosen = ready.start.name if ready.start else ""
        metrics = metrics_path(ready.preset, target, Path(receipt) if receipt else None)
        request = WorkerArguments(
            Path(preset), target, steps, path, single, saving_in, resume, chosen, metrics, runtime, devices
        )
        finished = _launch(request, ready, predicted, on_event, timeout_s)
        _judge(finished, Span(str(preset), 1, 1, 1, 1), timeout_s)
        result = read_receipt(path)
    result = result.model_copy(update={"predicted": dict(predicted) if predicted else None})
    if receipt is not None:
        result.write(receipt)
    return result


def _launch(
    request: WorkerArguments,
    ready: Prepared,
    predicted: Mapping[str, float] | None,
    on_event: Callable[[Event], None] | None,
    timeout_s: float | None,
) -> launch.Finished:
    longest_s = ready.preset.train.hang_s
    watchdog = Watchdog(ready.processes, longest_s)

    def on_line(rank: int, line: str) -> None:
        event = decode(line) if not watchdog.receive(rank, line) and rank == 0 else None
        if event is not None and on_event is not None:
            on_event(event)

    argv = [ready.python, "-P", "-m", "planc.trainer.run.worker", *request.arguments()]
    return launch.run(
        argv,
        ready.processes,
        env={EVENTS: "1", PREDICTED: json.dumps(dict(predicted) if predicted else None)},
        timeout_s=timeout_s,
        on_line=on_line,
        saves_on_term=ready.preset.checkpoints is not None,
        stuck=watchdog.stuck if longest_s else lambda: None,
    )


def _judge(finished: launch.Finished, span: Span, timeout_s: float | None) -> None:
    """Raise the error that belongs to the result of a launch; return if the launch succeeded."""
    if finished.ok:
        return
    if finished.returncode == launch.INTERRUPTED:
        raise KeyboardInterrupt
    if finished.returncode == launch.PREEMPTED:
        raise PreemptedError
    rank = finished.failed_rank
    output = _without_events(finished.outputs[rank or 0])
    if finished.why:
        raise TrainingError(Diagnostic("E1026", finished.why, span), output)
    if rank is None:
        raise TrainingError(Diagnostic("E1012", f"not done after {timeout_s:g} s", span), output)
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "it wrote nothing")
    message = f"rank {rank} ended with status {finished.returncode}: {last.removeprefix('error[E1012]: ')}"
    raise TrainingError(Diagnostic("E1012", message, span), output)


def _without_events(output: str) -> str:
    return "".join(line for line in output.splitlines(keepends=True) if not line.startswith((MARK, HEARTBEAT)))


def _too_many(devices: int, single: bool, span: Span) -> list[Diagnostic]:
    """Return an error if the plan has more devices than one machine can run: each is a process, or a virtual device of
    one process."""
    if single or devices <= MOST_PROCESSES:
        return []
    message = f"the plan is for {devices} devices, and one machine runs {MOST_PROCESSES} ranks at most"
    return [Diagnostic("E1010", message, span, help="planc lower --launch slurm writes a job for a cluster")]


def _unfit_data(preset: Preset, span: Span) -> list[Diagnostic]:
    model = preset.plan.model
    refusal = source_of(preset).refusal(model.sizes["vocab"])
    return [Diagnostic("E1013", f"the data does not fit {model.name}: {refusal}", span)] if refusal else []


def _unwritable(folder: Path | None, span: Span) -> list[Diagnostic]:
    """Return E1025 if checkpoints cannot be written in `folder`. The folder is not created yet."""
    if folder is None:
        return []
    nearest = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return []
    why = "it is read-only" if nearest.is_dir() else f"{nearest.name} is no folder"
    message = f"no checkpoint can be written in {folder}: {why}"
    return [Diagnostic("E1025", message, span, help="give --checkpoint DIR")]


def _oversubscribed(processes: int, span: Span) -> list[Diagnostic]:
    """Return a warning if there are more processes than cores: the run is slow, and its step times measure only the
    scheduler."""
    cores = _cores()
    if processes <= cores:
        return []
    message = f"{processes} processes share {cores} cores: step times say nothing about the plan"
    return [Diagnostic("W1014", message, span)]


def _cores() -> int:
    """Return the number of cores available to this process; on some systems, of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
