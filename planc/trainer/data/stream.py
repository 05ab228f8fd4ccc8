"""Training data as a stateless stream: `batch(step)` depends only on the seed and the step.

Therefore a step has the same tokens at any data-parallel degree, on any runtime, and after a restart.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planc.ir.session import Tokens

BYTES = 256
"""Vocabulary of byte-level data."""


class BatchSource(Protocol):
    """A source of batches (tokens, targets), each int32 [sequences, sequence_tokens]. The target of a token is the next
    token."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the data in use, including the held-out part."""
        ...

    def batch(self, step: int) -> tuple[Tokens, Tokens]:
        """Return the tokens and targets of training step `step`, counted from 1."""
        ...

    def held_out(self, index: int) -> tuple[Tokens, Tokens]:
        """Return the tokens and targets of held-out batch `index`, counted from 0. Held-out batches are never part of
        `batch`, and are the same at every evaluation."""
        ...

    def refusal(self, vocab: int) -> str:
        """Return why a model with a vocabulary of `vocab` tokens cannot train on this data at its batch size; "" if it
        can."""
        ...

    def going_on(self, step: int, shown: int) -> BatchSource:
        """Return the same data for a run that resumes after `step` and has consumed `shown` sequences so far."""
        ...


@dataclass(frozen=True)
class Evaluated:
    """Batches for training from `source`, and held-out batches from another source, `evaluation`."""

    source: BatchSource
    evaluation: BatchSource

    @property
    def sha256(self) -> str:
        """SHA-256 of the training data only, so that a run may be resumed with other evaluation data."""
        return self.source.sha256

    def batch(self, step: int) -> tuple[Tokens, Tokens]:
        """Return the tokens and targets of training step `step`, counted from 1."""
        return self.source.batch(step)

    def held_out(self, index: int) -> tuple[Tokens, Tokens]:
        """Return the tokens and targets of batch `index`, counted from 0, of the evaluation data."""
        return self.evaluation.held_out(index)

    def refusal(self, vocab: int) -> str:
        """Return why the training or the evaluation data does not fit a model with a vocabulary of `vocab` tokens; ""
        if both fit."""
        if of_evaluation := self.evaluation.refusal(vocab):
            return self.source.refusal(vocab) or f"for evaluation {of_evaluation}"
        return self.source.refusal(vocab)

    def going_on(self, step: int, shown: int) -> Evaluated:
        """Return the same data for a run that resumes after `step` and has consumed `shown` sequences so far."""
        return replace(self, source=self.source.going_on(step, shown))


EXCLUDED = frozenset(
    {
        "site-packages",
        "dist-packages",
        "__pycache__",
        "test",
        "tests",
        "encodings",  # tables of code points
        "pydoc_data",  # one long string
        "idlelib",
        "lib2to3",
        "turtledemo",
        "distutils",
        "ensurepip",
    }
)
HELD_OUT_SHARE = 0.1
"""Share of the files that is held out, chosen by the hash of their path."""


@dataclass(frozen=True)
class PythonStdlib:
    """Byte-level language modelling on the source code of Python's standard library.

    This data exists on every machine that runs planc. Files are sampled by the hash of their path, so the data of a
    smaller `max_bytes` is a subset of the data of a larger one. Another version of Python has other data, which changes
    `data_sha256` in the receipt.
    """

    sequences: int
    sequence_tokens: int
    seed: int
    max_bytes: int
    root: Path = Path(sysconfig.get_path("stdlib"))

    def batch(self, step: int) -> tuple[Tokens, Tokens]:
        return self._draw(self._train_and_held_out[0], "train", step)

    def held_out(self, index: int) -> tuple[Tokens, Tokens]:
        return self._draw(self._train_and_held_out[1], "held out", index)

    def refusal(self, vocab: int) -> str:
        if vocab < BYTES:
            return f"bytes are {BYTES} tokens, the vocabulary has {vocab}"
        shortest = min(len(part) for part in self._train_and_held_out)
        if shortest <= self.sequence_tokens:
            return f"a sequence is {self.sequence_tokens} tokens, a part of the text {shortest} bytes"
        return ""

    def going_on(self, _step: int, _shown: int) -> PythonStdlib:
        """Return this source unchanged, because each batch is sampled independently of earlier ones."""
        return self

    @cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in self._train_and_held_out:
            digest.update(hashlib.sha256(part.tobytes()).digest())
        return digest.hexdigest()

    @cached_property
    def _train_and_held_out(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the training bytes and the held-out bytes, files in the order of their paths."""
        train: list[bytes] = []
        held_out: list[bytes] = []
        for path in sorted(_chosen(self.root, self.max_bytes)):
            part = held_out if _fraction("held out", path) < HELD_OUT_SHARE else train
            part.append((self.root / path).read_bytes())
        return np.frombuffer(b"".join(train), np.uint8), np.frombuffer(b"".join(held_out), np.uint8)

    def _draw(self, text: NDArray[np.uint8], stream: str, index: int) -> tuple[Tokens, Tokens]:
        """Return sequences from random positions of `text`, and their targets. Positions depend on seed, `stream`,
        `index`."""
        places = len(text) - self.sequence_tokens
        key = hashlib.sha256(f"{self.seed} {stream} {index}".encode()).digest()
        # random_raw, as numpy promises this stream to be the same in all its versions.
        raw = np.random.PCG64(int.from_bytes(key, "little")).random_raw(self.sequences)
        starts = (raw % np.uint64(places)).astype(np.int64)
        windows = text[starts[:, None] + np.arange(self.sequence_tokens + 1)].astype(np.int32)
        return windows[:, :-1].copy(), windows[:, 1:].copy()


def _chosen(root: Path, max_bytes: int) -> list[str]:
    """Return relative paths of files, sampled by the hash of the path, with at most `max_bytes` bytes in total."""
    chosen, left = [], max_bytes
    for path in sorted(_python_files(root), key=lambda p: _fraction("order", p)):
        size = (root / path).stat().st_size
        if size <= left:
            chosen.append(path)
            left -= size
    return chosen


def _python_files(root: Path) -> list[str]:
    """Return the standard library's files, except `_sysconfigdata*`, which depends on the build of Python."""
    paths = (path.relative_to(root) for path in _walk_folder(root))
    return [p.as_posix() for p in paths if not p.name.startswith("_sysconfigdata")]


def _walk_folder(folder: Path) -> list[Path]:
    """Return every `*.py` file below `folder`. Excluded folders are skipped (site-packages can be huge)."""
    found: list[Path] = []
    for entry in folder.iterdir():
        if entry.name in EXCLUDED or entry.name.startswith("config-"):
            continue
        if entry.is_dir():
            found += _walk_folder(entry)
        elif entry.suffix == ".py":
            found.append(entry)
    return found


def _fraction(purpose: str, path: str) -> float:
    """Return a hash of `purpose` and `path` as a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {path}".encode()).digest()[:8], "big") / 2**64
