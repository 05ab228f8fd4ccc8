"""The folder of a run's checkpoints: list, verify, remove and lock them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from planc.diag import Diagnostic, PlanError, Span
from planc.files import leads_out, open_regular, read_text
from planc.trainer.checkpoint import history as histories
from planc.trainer.checkpoint import manifest as manifests
from planc.trainer.checkpoint.manifest import Manifest
from planc.trainer.checkpoint.safetensors_header import read_header

LOCK = ".lock"
WRITING, LEAVING = ".writing-", ".leaving-"
"""Prefixes of folders of checkpoints that are being written or removed."""
ASIDE = "aside-"
"""Prefix of checkpoints of later steps than the one a run resumed from: they are kept but ignored."""
PASSED_OVER = ("E1019", "E1021")
"""Errors of one checkpoint after which an older one may still be used."""
WAIT_S = 10.0
"""Time limit (s) for the ranks of a run that has just ended to exit."""
BLOCK = 1 << 20

_NAME = re.compile(r"step-([0-9]{8,15})(?:\.([0-9]{1,15}))?")


class StoredCheckpoint(NamedTuple):
    """A checkpoint's folder and the step in its name. `again` is the number of earlier checkpoints of that step."""

    step: int
    again: int
    path: Path


def stored_checkpoints(folder: Path) -> list[StoredCheckpoint]:
    """Return the checkpoints in `folder`, oldest first; [] if the folder does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(named_checkpoint(path) for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return []


def named_checkpoint(path: Path) -> StoredCheckpoint:
    """Return the checkpoint in the folder `path`, whose name must have the form `step-00000100`."""
    match = _NAME.fullmatch(path.name)
    assert match, f"{path.name} is no checkpoint's name"
    return StoredCheckpoint(int(match[1]), int(match[2] or 0), path)


def is_whole(path: Path) -> bool:
    """True if the checkpoint at `path` is complete and undamaged, so that a run can resume from it."""
    try:
        verify(path)
    except PlanError:
        return False
    return True


def free_name(folder: Path, step: int) -> Path:
    """Return an unused path in `folder` for the next checkpoint of `step`; existing ones are never overwritten."""
    taken = [k.again for k in stored_checkpoints(folder) if k.step == step]
    again = f".{max(taken) + 1}" if taken else ""
    return folder / f"step-{step:08}{again}"


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints in `folder` but the `keep` newest; if `keep` is 0, remove none. A checkpoint's folder is
    renamed before its files are deleted."""
    for old in stored_checkpoints(folder)[:-keep] if keep else []:
        remove(old.path)


def remove(path: Path) -> None:
    """Remove the checkpoint at `path`, complete or not, atomically for other processes; errors are ignored."""
    leaving = path.with_name(f"{LEAVING}{path.name.lstrip('.')}-{os.getpid()}")
    with suppress(OSError):
        path.rename(leaving)
        _delete(leaving)


def put_aside(folder: Path, after: int) -> None:
    """Rename the checkpoints of steps later than `after`, so that they no longer count: the run repeats these steps."""
    for later in stored_checkpoints(folder):
        if later.step > after:
            number = sum(path.name.startswith(f"{ASIDE}{later.path.name}") for path in folder.iterdir())
            later.path.rename(folder / f"{ASIDE}{later.path.name}-{number}")


def tidy(folder: Path, up_to: int | None = None) -> None:
    """Remove incomplete checkpoints in `folder`: of steps up to `up_to`, or all if `up_to` is None. The caller must
    hold the lock."""
    for path in folder.iterdir():
        began = re.match(rf"{re.escape(WRITING)}([0-9]+)", path.name)
        if path.name.startswith(LEAVING) or (began and (up_to is None or int(began[1]) <= up_to)):
            _delete(path)


def _delete(path: Path) -> None:
    """Delete a folder; of a symbolic link, delete only the link."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


class Lock:
    """The lock that rank 0 holds while its run may write; the kernel releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._file: int | None = None

    def taken(self, wait_s: float = WAIT_S) -> bool:
        """Take the lock, and wait up to `wait_s` seconds until its holder releases it. True if the lock was taken."""
        import fcntl

        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        limit = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < limit:
                    time.sleep(0.05)
                    continue
                os.close(file)
                return False
            self._file = file
            return True

    def release(self) -> None:
        """Release the lock, if this process holds it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the checkpoint at `path`.

    Raises PlanError: E1019 if the manifest is missing, E1021 if it is damaged, E1022 if a later version wrote it.
    """
    try:
        text = read_text(path / manifests.NAME, manifests.MAX_BYTES)
    except FileNotFoundError:
        raise _refused("E1019", path, f"{manifests.NAME} is missing") from None
    except (OSError, ValueError) as error:
        raise _refused("E1021", path, f"{manifests.NAME} cannot be read: {error}") from None
    try:
        return manifests.read(text)
    except manifests.LaterError as error:
        raise _refused("E1022", path, str(error)) from None
    except ValueError as error:
        raise _refused("E1021", path, str(error).splitlines()[0]) from None


def verify(path: Path, share: tuple[int, int] = (0, 1)) -> Manifest:
    """Verify the checkpoint at `path` and return its manifest. Raises PlanError if a file is missing or damaged.

    All files are checked for existence and size. With `share` = (index, count), the checksum is checked of every
    `count`-th file from number `index` on, so that ranks share the work.
    """
    manifest = read_manifest(path)
    named = _NAME.fullmatch(path.name)
    if named and int(named[1]) != manifest.step:
        raise _refused("E1021", path, f"it holds step {manifest.step}, not the one in its name")
    missing = [name for name in manifest.files if not (path / name).is_file()]
    if missing:
        raise _refused(
            "E1019", path, f"{_listed(missing)} of {len(manifest.files)} files {_is_or_are(missing)} missing"
        )
    if gaps := [name for name, stored in manifest.tensors.items() if not stored.is_whole()]:
        raise _refused("E1019", path, f"{_listed(gaps)} {_is_or_are(gaps)} there in part only, or twice")
    inside = manifest.boxes_by_file()
    for place, (name, file) in enumerate(sorted(manifest.files.items())):
        size = (path / name).stat().st_size
        if leads_out(path / name):
            raise _refused("E1021", path, f"{name} is a link to another folder")
        if size != file.bytes:
            raise _refused("E1021", path, f"{name} has {size:,} bytes, and {file.bytes:,} were written")
        if place % share[1] == share[0]:
            if _sha256(path / name) != file.sha256:
                raise _refused("E1021", path, f"{name} is not what was written: its sum differs")
            if why := _unfit_header(path / name, inside.get(name, {})):
                raise _refused("E1021", path, why)
    read_history(path, manifest.step)
    return manifest


def read_history(path: Path, step: int) -> dict[str, Any]:
    """Return the losses, gradient norms and times of `step` steps from the checkpoint at `path`. Raises PlanError if
    they cannot be read."""
    try:
        return histories.read(read_text(path / manifests.HISTORY, manifests.MAX_BYTES), step)
    except (OSError, ValueError) as error:
        raise _refused("E1021", path, f"{manifests.HISTORY}: {error}") from None


def _unfit_header(file: Path, boxes: dict[str, tuple[int, ...]]) -> str:
    """Return how a tensor file differs from the float32 boxes that the manifest lists for it; "" if it does not."""
    if not boxes:
        return ""
    try:
        found = {name: (entry.dtype, entry.shape) for name, entry in read_header(file).items()}
    except (OSError, ValueError) as error:
        return str(error)
    if found != {name: ("F32", size) for name, size in boxes.items()}:
        return f"{file.name} does not hold the float32 boxes that {manifests.NAME} describes"
    return _refused_by_safetensors(file)


def _refused_by_safetensors(file: Path) -> str:
    """Return why the safetensors package, which reads the values later, rejects the file; "" if it accepts the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):
            return ""
    except (SafetensorError, OSError) as error:
        return f"{file.name}: {error}"


def newest_whole(folder: Path) -> tuple[StoredCheckpoint, Manifest, list[Diagnostic]]:
    """Return the newest complete checkpoint in `folder`, its manifest, and a note for each newer checkpoint that is
    incomplete or damaged.

    Raises PlanError at a checkpoint of a later version of planc, and if no checkpoint is complete.
    """
    notes: list[Diagnostic] = []
    first: PlanError | None = None
    for found in reversed(stored_checkpoints(folder)):
        try:
            return found, verify(found.path), notes
        except PlanError as error:
            first = first or error
            why = error.diagnostics[0]
            if why.code not in PASSED_OVER:
                raise
            notes.append(Diagnostic("N1027", f"passed over: {why.message}", why.span))
    assert first is not None, "there is no checkpoint"
    raise first


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while block := file.read(BLOCK):
            yield block


def _refused(code: str, path: Path, why: str) -> PlanError:
    intact = [k.path.name for k in stored_checkpoints(path.parent) if k.path != path]
    other = f"older ones: {', '.join(intact)}; `--resume STEP` names one" if intact else "there is no other checkpoint"
    return PlanError([Diagnostic(code, f"checkpoint {path.name}: {why}", _span(path), help=other)])


def _span(path: Path) -> Span:
    return Span(str(path / manifests.NAME), 1, 1, 1, 1)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def _is_or_are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
