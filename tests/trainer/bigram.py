"""A runtime of a few lines of numpy: a bigram model, so that the trainer is tested without a framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planc.ir.session import CompileFacts, Piece, Settings


class BigramSession:
    """Learns a table of next-byte logits by plain gradient descent."""

    rank, world = 0, 1
    runtime = "numpy"
    versions = {"numpy": np.__version__}
    features = ("bigram",)

    def __init__(self, vocab: int, breaks_at: int = 0) -> None:
        self.logits = np.zeros((vocab, vocab))
        self.steps, self.breaks_at, self.closed = 0, breaks_at, False

    def step(self, tokens: NDArray[Any], targets: NDArray[Any], lr: float) -> tuple[float, float]:
        loss, gradient = self._loss(tokens, targets)
        self.logits -= lr * 1e4 * gradient
        self.steps += 1
        return (float("nan") if self.steps == self.breaks_at else loss), float(np.linalg.norm(gradient))

    def evaluate(self, tokens: NDArray[Any], targets: NDArray[Any]) -> float:
        return self._loss(tokens, targets)[0]

    def parameters(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        yield "logits", self.logits.astype(np.float32)

    def pieces(self) -> list[Piece]:
        return []

    def not_finite(self) -> list[str]:
        return ["rank 0: gradient logits"]

    def peak_memory_gib(self) -> float | None:
        return None

    def reserved_memory_gib(self) -> float | None:
        return None

    def compile_facts(self) -> CompileFacts:
        return CompileFacts(uncached=0)

    def close(self) -> None:
        self.closed = True

    def _loss(self, tokens: NDArray[Any], targets: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        """Mean cross entropy and its gradient in the logits."""
        x, y = tokens.ravel(), targets.ravel()
        z = self.logits[x] - self.logits[x].max(axis=1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        loss = -np.log(p[np.arange(len(y)), y]).mean()
        p[np.arange(len(y)), y] -= 1
        gradient = np.zeros_like(self.logits)
        np.add.at(gradient, x, p / len(y))
        return float(loss), gradient


class BigramRuntime:
    """Stands where `planc.backends.<target>.runtime` does."""

    def __init__(self, breaks_at: int = 0) -> None:
        self.calls: list[str] = []
        self.breaks_at = breaks_at
        self.settings: Settings | None = None
        self.session: BigramSession | None = None

    def prepare_environment(self, devices: int) -> None:
        self.calls.append(f"prepare {devices}")

    def start(self, program: Any, settings: Settings, initial: Any) -> BigramSession:
        return self._start("start", program, settings)

    def start_single(self, program: Any, settings: Settings, initial: Any) -> BigramSession:
        return self._start("single", program, settings)

    def _start(self, call: str, program: Any, settings: Settings) -> BigramSession:
        self.calls.append(call)
        self.settings = settings
        self.session = BigramSession(program.plan.model.sizes["vocab"], self.breaks_at)
        return self.session
