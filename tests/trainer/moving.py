"""A runtime of numpy whose every tensor of state decides the loss: what a checkpoint loses or mixes up shows."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planc.ir.model import Model
from planc.ir.session import STATE, CompileFacts, Piece, Read
from planc.trainer.run.initial_weights import names

Floats = NDArray[np.float32]


class MovingSession:
    """State moves with the tokens and the rate. Ranks hold `rows` rows of a tensor in turn."""

    rows = 100

    runtime, versions, features = "numpy", {"numpy": np.__version__}, ("moving",)

    def __init__(self, model: Model, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.optimizer_steps = 0
        self.state: dict[str, Floats] = {}
        for kind in STATE:
            for name, shape in names(model):
                stream = np.random.default_rng(zlib.crc32(name.encode()))
                start = stream.standard_normal(shape, np.float32) if kind == "params" else np.zeros(shape, np.float32)
                self.state[f"{kind}.{name}"] = start

    def step(self, tokens: NDArray[Any], targets: NDArray[Any], lr: float) -> tuple[float, float]:
        push = np.float32(tokens.mean() / 100)
        for name in self.names():
            first, second = self.state[f"exp_avg.{name}"], self.state[f"exp_avg_sq.{name}"]
            first += (push * np.cos(self.state[f"params.{name}"]) - first) / 4
            second += (first**2 - second) / 8
            self.state[f"params.{name}"] -= np.float32(lr) * first / (1 + np.sqrt(second))
        self.optimizer_steps += 1
        return self.loss(), float(push)

    def evaluate(self, tokens: NDArray[Any], targets: NDArray[Any]) -> float:
        return self.loss()

    def loss(self) -> float:
        return float(sum(self.state[f"params.{n}"].mean() * (i + 1) for i, n in enumerate(self.names())))

    def names(self) -> list[str]:
        return [name.removeprefix("params.") for name in self.state if name.startswith("params.")]

    def parameters(self) -> Iterator[tuple[str, Floats]]:
        for name in self.names():
            yield name, self.state[f"params.{name}"]

    def pieces(self) -> list[Piece]:
        return [
            Piece(name, array.shape, (row, *[0] * (array.ndim - 1)), part.shape, self._copier(name, row, len(part)))
            for name, array in self.state.items()
            for row in range(self.rank * self.rows, len(array), self.world * self.rows)
            for part in [array[row : row + self.rows]]
        ]

    def _copier(self, name: str, row: int, rows: int) -> Any:
        return lambda array: np.copyto(array, self.state[name][row : row + rows])

    def restore(self, read: Read, optimizer_steps: int) -> None:
        for name, array in self.state.items():
            array[...] = read(name, tuple(slice(0, n) for n in array.shape))
        self.optimizer_steps = optimizer_steps

    def any(self, flag: bool) -> bool:
        return flag

    def not_finite(self) -> list[str]:
        return []

    def peak_memory_gib(self) -> float | None:
        return None

    def reserved_memory_gib(self) -> float | None:
        return None

    def compile_facts(self) -> CompileFacts:
        return CompileFacts()

    def close(self) -> None:
        pass


class MovingRuntime:
    """Stands where `planc.backends.<target>.runtime` does."""

    def prepare_environment(self, devices: int) -> None:
        pass

    def start(self, program: Any, settings: Any, initial: Any) -> MovingSession:
        return MovingSession(program.plan.model)

    start_single = start
