"""The checkpoint manager of a worker process: resumes from a checkpoint, saves after steps, and saves and exits on
SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.diag import Diagnostic, PlanError, Span
from planc.trainer.checkpoint import directory as folders
from planc.trainer.checkpoint.compatible import course
from planc.trainer.checkpoint.manifest import Manifest, Position
from planc.trainer.checkpoint.writer import Failed, Saver, Where, run_name
from planc.trainer.preset.load import Preset
from planc.trainer.run.loop import History, PreemptedError
from planc.trainer.telemetry.events import Event, SaveDone, SaveFailed
from planc.version import __version__

if TYPE_CHECKING:
    from planc.ir.session import Session
    from planc.ir.target import Target


class Keeper:
    """Saves the state of a training session as often as the preset says. Each process has one."""

    def __init__(
        self, preset: Preset, target: Target, session: Session, data_sha256: str, tell: Callable[[Event], None]
    ) -> None:
        folder = preset.checkpoints
        assert folder is not None
        self._folder = folder
        self._preset, self._target, self._session, self._tell = preset, target, session, tell
        self._data_sha256, self._settings = data_sha256, preset.checkpoint
        self._span = Span(str(preset.path), 1, 1, 1, 1)
        self._lock = folders.Lock(folder)
        if session.rank == 0:
            self._open(folder)
        where = Where(folder, run_name(), self._settings.keep, self._settings.asynchronous, self._settings.timeout_s)
        self._saver = Saver(session, where)
        self._save_requested = False
        self._last = 0
        self.shown = (0, 0)
        """A step, and the number of sequences that the run had consumed by then."""
        signal.signal(signal.SIGTERM, self._request_save)

    def resume(self, path: Path) -> History:
        """Load the complete checkpoint at `path` into the session. Return the history of the run up to that step."""
        from planc.trainer.checkpoint.tensor_files import Reader

        manifest = folders.read_manifest(path)
        self._session.restore(Reader(path, manifest.tensors), manifest.optimizer_steps)
        self._last = manifest.step
        self.shown = (manifest.step, manifest.position.sequences)
        history = read_history(path)
        if self._session.rank == 0:
            folders.put_aside(path.parent, manifest.step)
        return history

    def check_start(self, chosen: Path | None, *, newest: bool) -> None:
        """Raise PlanError if another run has saved in this folder since this run selected its checkpoint. That run may
        have saved its last step while this one waited for the lock.

        `chosen` is the checkpoint to resume from, None to start from scratch. `newest` is True if the user requested
        the newest checkpoint.
        """
        if self._session.rank != 0 or (chosen is not None and not newest):
            return
        later = folders.stored_checkpoints(self._folder)
        if chosen is not None:
            later = [k for k in later if k > folders.named_checkpoint(chosen)]
            if self._settings.on_damage == "previous":
                later = [k for k in later if folders.is_whole(k.path)]
        if later:
            message = f"another run has saved {later[-1].path.name} in {self._folder} since this one was started"
            raise PlanError([Diagnostic("E1017", message, self._span, help="start again: --resume goes on from it")])

    def after_step(self, step: int, history: History) -> None:
        """Save if a checkpoint of `step` (counted from 1) is due, or if any process received SIGTERM.

        After SIGTERM, raise PreemptedError when everything is saved.
        """
        self._report_saves()
        preempted = self._session.any(self._save_requested)
        every = self._settings.every_steps
        if preempted or (every and step % every == 0):
            self._save(step, history)
        if preempted:
            self._complete()
            raise PreemptedError

    def finish(self, history: History) -> None:
        """Save the last step of `history` and wait until it is on disk. Raises PlanError (E1025) on failure."""
        if history.steps != self._last:
            self._save(history.steps, history)
        self._complete()

    def close(self) -> None:
        """Wait for pending writes and release the lock of the folder."""
        self._saver.finish()
        self._lock.release()

    def _open(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = self._lock.taken()
            if taken:
                folders.tidy(folder)
        except OSError as error:
            message = f"no checkpoint can be written in {folder}: {error.strerror}"
            raise PlanError([Diagnostic("E1025", message, self._span, help="give --checkpoint DIR")]) from None
        if not taken:
            raise PlanError([in_use(folder, self._span)])

    def _request_save(self, _number: int, _frame: Any) -> None:
        self._save_requested = True

    def _save(self, step: int, history: History) -> None:
        if step == self._last:
            return
        manifest = manifest_of(self._preset, self._target, self._session, self._data_sha256, step, self.shown)
        self._saver.save(manifest, asdict(history))
        self._last = step

    def _complete(self) -> None:
        self._saver.finish()
        self._report_saves()
        if self._session.rank == 0 and self._saver.failed is not None:
            failed = self._saver.failed
            message = f"the checkpoint of step {failed.step} could not be written: {failed.why}"
            raise PlanError([Diagnostic("E1025", message, self._span)])

    def _report_saves(self) -> None:
        for news in self._saver.news():
            if isinstance(news, Failed):
                self._tell(SaveFailed(news.step, news.why))
            else:
                self._tell(SaveDone(news.step, news.stall_s, news.write_s))


def manifest_of(
    preset: Preset, target: Target, session: Session, data_sha256: str, step: int, shown: tuple[int, int] = (0, 0)
) -> Manifest:
    """Return the manifest of a checkpoint of `step`, without its list of files. `shown` is (step, sequences): an
    earlier step and the sequences consumed by its end."""
    plan = preset.plan
    sequences = shown[1] + (step - shown[0]) * plan.batch.sequences
    return Manifest(
        step=step,
        optimizer_steps=session.optimizer_steps,
        plan=plan.name,
        plan_sha256=plan.sha256,
        mesh=plan.mesh.sizes,
        target=target,
        runtime=session.runtime,
        versions={"planc": __version__, **session.versions},
        model=plan.model.name,
        course=course(preset),
        data_sha256=data_sha256,
        position=Position(step=step, sequences=sequences, tokens=sequences * plan.batch.sequence_tokens),
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def read_history(path: Path) -> History:
    """Return the history of losses in the checkpoint at `path`. Raises PlanError if it cannot be read."""
    return History(**folders.read_history(path, folders.read_manifest(path).step))


def in_use(folder: Path, span: Span) -> Diagnostic:
    """Return the diagnostic E1017 at `span`: another run is saving in `folder`."""
    return Diagnostic("E1017", f"another run is saving in {folder}", span, help="end it, or give --checkpoint DIR")
