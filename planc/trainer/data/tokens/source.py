"""Batches from a stream of tokens, in a computed random order of sequences.

Sequence i has the S tokens from position i S; its last target is the token after them. Documents are packed: a sequence
may contain parts of several documents. Each epoch has its own order. A batch depends only on the step and the seed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from planc.trainer.data.tokens.files import Stream
from planc.trainer.data.tokens.permutation import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planc.ir.session import Tokens


@dataclass(frozen=True)
class TokenSource:
    """A `planc.trainer.data.stream.BatchSource` over a stream of tokens. The last `held_share` of its sequences is held
    out.

    `content` is the checksum of the stream's tokens, `largest` the largest token. For a run resumed with another batch
    size, `origin` is the step at which it resumed and the number of sequences consumed by the end of that step.
    """

    stream: Stream
    content: str
    largest: int
    sequences: int
    sequence_tokens: int
    seed: int
    held_share: float = 0.01
    shuffle: bool = True
    origin: tuple[int, int] = (0, 0)

    @property
    def sha256(self) -> str:
        """SHA-256 of the tokens, and of the settings that split and order them."""
        said = {"content": self.content, "held_out": self.held_share, "shuffle": self.shuffle}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def count(self) -> int:
        """Total number of sequences, including held-out ones."""
        return max(0, (len(self.stream) - 1) // self.sequence_tokens)

    @property
    def held_count(self) -> int:
        return max(1, round(self.held_share * self.count)) if self.held_share else 0

    @property
    def train_count(self) -> int:
        return self.count - self.held_count

    def batch(self, step: int) -> tuple[Tokens, Tokens]:
        """Return the tokens and targets of training step `step`, counted from 1."""
        return self._rows_at(self.places(self.shown_before(step), self.sequences))

    def held_out(self, index: int) -> tuple[Tokens, Tokens]:
        places = self.train_count + (index * self.sequences + np.arange(self.sequences)) % self.held_count
        return self._rows_at(places)

    def shown_before(self, step: int) -> int:
        """Return the number of sequences that the run has consumed before `step`, counted from 1."""
        at, shown = self.origin
        return shown + (step - 1 - at) * self.sequences

    def going_on(self, step: int, shown: int) -> TokenSource:
        """Return the same data for a run that resumes after `step` and has consumed `shown` sequences so far."""
        return replace(self, origin=(step, shown))

    def places(self, first: int, number: int) -> NDArray[np.int64]:
        """Return the indices in the stream of `number` sequences, from position `first` of the training order on."""
        found: list[int] = []
        for epoch in range(first // self.train_count, (first + number - 1) // self.train_count + 1):
            begin = max(first, epoch * self.train_count)
            end = min(first + number, (epoch + 1) * self.train_count)
            inside = np.arange(begin, end, dtype=np.uint64) - np.uint64(epoch * self.train_count)
            order = Permutation(self.train_count, f"{self.seed} epoch {epoch}")
            found += (order(inside) if self.shuffle else inside).tolist()
        return np.asarray(found, np.int64)

    def refusal(self, vocab: int) -> str:
        if self.largest >= vocab:
            return f"it holds token {self.largest}, the vocabulary has {vocab}"
        parts = 1 + (0 < self.held_share < 1)  # to train on, and held out
        if self.count < parts or (self.train_count < 1 and self.held_share < 1):
            need = parts * self.sequence_tokens + 1
            return f"it has {len(self.stream):,} tokens, and sequences of {self.sequence_tokens} need {need:,} at least"
        return ""

    def _rows_at(self, places: NDArray[np.int64]) -> tuple[Tokens, Tokens]:
        length = self.sequence_tokens
        rows = np.stack([self.stream.read(int(place) * length, length + 1) for place in places])
        return rows[:, :-1].copy(), rows[:, 1:].copy()
