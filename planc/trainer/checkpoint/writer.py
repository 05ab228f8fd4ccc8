"""Saves asynchronously: the state is copied to host memory, and a thread of each process then writes the files.

Training waits only for the copy. The thread of a rank writes its files and finally `rank-RRRRR.json`, which lists them.
The thread of rank 0 waits for the lists of all ranks, writes the manifest, and renames the folder. If a rank is killed,
a hidden folder remains, which the next run removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planc.files import read_json, read_text
from planc.trainer.checkpoint import directory as folders
from planc.trainer.checkpoint import tensor_files as parts
from planc.trainer.checkpoint.manifest import HISTORY, MAX_BYTES, NAME, File, Manifest, Stored, StoredBox
from planc.trainer.run.launch import ATTEMPT

if TYPE_CHECKING:
    from planc.ir.session import Piece, Session, Weights

POLL_S = 0.01
FAILED = "failed-"
"""Prefix of the file by which a rank reports that it cannot write."""


@dataclass(frozen=True)
class Where:
    """The folder and the options of a run's checkpoints. `run` identifies one attempt of the run: it is the same on all
    ranks, and differs between attempts. `keep` is the number of checkpoints to keep."""

    folder: Path
    run: str
    keep: int
    asynchronous: bool
    timeout_s: float


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete on disk. Training was blocked for `stall_s` seconds; writing took `write_s` seconds
    more."""

    step: int
    path: Path
    stall_s: float
    write_s: float


@dataclass(frozen=True)
class Failed:
    """A checkpoint that could not be written, and the reason (`why`). Earlier checkpoints are unchanged."""

    step: int
    why: str


class Saver:
    """Saves the state of a session. One checkpoint is written at a time, so the next save waits for the previous one.

    A failed save (such as on a full disk) is reported and training continues, because the next save may succeed.
    """

    def __init__(self, session: Session, where: Where) -> None:
        self._session, self.where = session, where
        self._buffers: list[Weights] = []
        self._thread: threading.Thread | None = None
        self._news: list[Saved | Failed] = []
        self.failed: Failed | None = None
        """The last save, if it failed."""

    def save(self, manifest: Manifest, history: dict[str, Any]) -> None:
        """Save the current state as the checkpoint of the step in `manifest`. Every process must call this at the same
        step.

        `history` becomes a JSON file beside the tensors. Training waits for the copy to host memory. It waits for the
        disk only if saving is synchronous, or if the previous checkpoint is still being written.
        """
        start = time.perf_counter()
        self.finish()
        pieces = self._session.pieces()
        if not self._buffers:
            self._buffers = [np.zeros(p.size, np.float32) for p in pieces]
        for piece, buffer in zip(pieces, self._buffers, strict=True):
            piece.copy_to(buffer)
        data = json.dumps(history, allow_nan=False).encode() if self._session.rank == 0 else b""
        arguments = (manifest, pieces, data, time.perf_counter() - start)
        thread = threading.Thread(target=self._write, args=arguments, name="checkpoint", daemon=True)
        thread.start()
        self._thread = thread
        if not self.where.asynchronous:
            self.finish()

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is complete or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def news(self) -> list[Saved | Failed]:
        """Return the results of the saves that finished since the last call (on rank 0)."""
        found, self._news = self._news, []
        return found

    def _write(self, manifest: Manifest, pieces: list[Piece], history: bytes, stall_s: float) -> None:
        start = time.perf_counter()
        folder = self.where.folder / f"{folders.WRITING}{manifest.step:08}-{self.where.run}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write_part(folder, pieces)
            if self._session.rank == 0:
                path = self._commit(folder, manifest, history)
                self._news.append(Saved(manifest.step, path, stall_s, time.perf_counter() - start))
            self.failed = None
        except Exception as error:
            self.failed = Failed(manifest.step, str(error))
            self._news.append(self.failed)
            self._give_up(folder, error)

    def _write_part(self, folder: Path, pieces: list[Piece]) -> None:
        """Write this rank's tensor files, and then the list of these files."""
        need, free = sum(b.nbytes for b in self._buffers), shutil.disk_usage(folder).free
        if need > free:
            raise OSError(f"{need:,} bytes to write, and {free:,} are free in {folder.parent}")
        files, tensors = parts.write(folder, self._session.rank, pieces, self._buffers)
        said = {
            "files": {name: file.model_dump() for name, file in files.items()},
            "tensors": {name: stored.model_dump() for name, stored in tensors.items()},
        }
        name = f"rank-{self._session.rank:05}.json"
        parts.write_through(folder / f".{name}", json.dumps(said).encode())
        os.rename(folder / f".{name}", folder / name)

    def _commit(self, folder: Path, manifest: Manifest, history: bytes) -> Path:
        """Complete the checkpoint, on rank 0: wait for the files of all ranks, write the manifest, and rename the
        folder."""
        files: dict[str, File] = {}
        tensors: dict[str, Stored] = {}
        for path in self._wait_for_ranks(folder):
            said = read_json(path, MAX_BYTES)
            files |= {name: File.model_validate(file) for name, file in said["files"].items()}
            for name, stored in said["tensors"].items():
                _add(tensors, name, Stored.model_validate(stored))
            path.unlink()
        parts.write_through(folder / HISTORY, history)
        files[HISTORY] = File(bytes=len(history), sha256=hashlib.sha256(history).hexdigest())
        whole = manifest.model_copy(update={"files": files, "tensors": dict(sorted(tensors.items()))})
        parts.write_through(folder / NAME, whole.text().encode())
        _sync(folder)
        final = folders.free_name(self.where.folder, manifest.step)
        folder.rename(final)
        _sync(self.where.folder)
        folders.prune(self.where.folder, self.where.keep)
        # What ranks have begun late of a save that was given up; some may be writing the next one already.
        folders.tidy(self.where.folder, up_to=manifest.step)
        return final

    def _wait_for_ranks(self, folder: Path) -> list[Path]:
        """Wait until every rank has written its list of files; return the paths of the lists. Raises OSError if a rank
        fails or times out."""
        wanted = [folder / f"rank-{rank:05}.json" for rank in range(self._session.world)]
        limit = time.monotonic() + self.where.timeout_s
        while missing := [path.stem for path in wanted if not path.exists()]:
            if failed := sorted(folder.glob(f"{FAILED}*")):
                raise OSError(f"rank {int(failed[0].name.removeprefix(FAILED))}: {read_text(failed[0], MAX_BYTES)}")
            if time.monotonic() > limit:
                raise OSError(f"{missing[0]} has not written its part in {self.where.timeout_s:g} s")
            time.sleep(POLL_S)
        return wanted

    def _give_up(self, folder: Path, error: Exception) -> None:
        """Remove incomplete files, and tell rank 0 not to wait for this rank."""
        if self._session.rank == 0:
            folders.remove(folder)
            return
        for path in folder.glob(f"*-{self._session.rank:05}-*"):
            path.unlink(missing_ok=True)  # room for the word
        with suppress(OSError):
            (folder / f"{FAILED}{self._session.rank:05}").write_text(str(error))


def _add(tensors: dict[str, Stored], name: str, stored: Stored) -> None:
    before: tuple[StoredBox, ...] = tensors[name].boxes if name in tensors else ()
    tensors[name] = Stored(shape=stored.shape, boxes=(*before, *stored.boxes))


def _sync(folder: Path) -> None:
    """Sync the folder, so that file names are on disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def run_name(environ: Callable[[str], str | None] = os.environ.get) -> str:
    """Return a name for this attempt of the run, which is the same on all ranks. It comes from the environment
    variables of planc's launcher, torchrun or Slurm.

    `environ` reads an environment variable (None: unset).
    """
    names = (ATTEMPT, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")
    said = "-".join(v for v in map(environ, names) if v) or "alone"
    return "".join(c if c.isalnum() or c == "-" else "_" for c in said)
