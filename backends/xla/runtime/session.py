"""A model in training on JAX, for the trainer's loop. Calls the functions of an emitted file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.backends.xla.runtime import shards, state
from planc.backends.xla.runtime.steps import Steps
from planc.ir.program_text import ProgramText
from planc.ir.session import CompileFacts

if TYPE_CHECKING:
    import jax

    from planc.backends.xla.analysis.stacked_params import Stacks
    from planc.backends.xla.runtime.named_trace import Name
    from planc.ir.session import Piece, Read, Tokens, Weights

CHECKED_AFTER = 2
"""The step after which the layout of the state is checked: a step that loses a layout has lost it by then."""


class JaxSession:
    """Implements `planc.ir.session.Session` on JAX. One process may drive many devices."""

    runtime = "jax"

    def __init__(
        self,
        program: ProgramText,
        steps: Steps,
        first: Any,
        *,
        process: tuple[int, int],
        versions: dict[str, str],
        stacks: Stacks,
        keep_gradients: bool = False,
        skip_not_finite: bool = False,
    ) -> None:
        self.rank, self.world = process
        self.versions = versions
        self.features: tuple[str, ...] = ()
        self._program, self._model, self._steps, self._state = program, program.plan.model, steps, first
        self._stacks = stacks
        self._compiled: Any = None
        self._compilations = shards.Compilations()
        self._uncached = 0
        self._taken = 0
        self._skip = skip_not_finite
        self.optimizer_steps = 0
        self._pieces: list[Piece] | None = None
        self._keep_gradients = keep_gradients
        self._gradients: Any = None
        self._picks: Any = 0

    def step(self, tokens: Tokens, targets: Tokens, lr: float) -> tuple[float, float]:
        """Run one optimizer step on the global batch [sequences, S] and return (mean loss, gradient norm)."""
        rows = self._rows(tokens), self._rows(targets)
        if self._keep_gradients:
            _, self._gradients = self._steps.gradients(self._state["params"], *rows)
        before = self._compilations.count
        loss, norm = self._run_step(*rows, lr)
        self._taken += 1
        self.optimizer_steps += not self._skip or (math.isfinite(loss) and math.isfinite(norm))
        if self._taken > 1:
            self._uncached += self._compilations.count - before
        if self._taken == CHECKED_AFTER:
            astray = shards.misplaced(self._state, self._steps.state)
            assert not astray, f"state lost its layout in a step: {astray}"
        return loss, norm

    def _run_step(self, tokens: jax.Array, targets: jax.Array, lr: float) -> tuple[float, float]:
        import numpy as np

        arguments = (self._state, tokens, targets, np.float32(lr))
        if self._compiled is None:
            self._compiled = self._steps.step.lower(*arguments).compile()
        self._state, metrics = self._compiled(*arguments)
        if "picks" in metrics:
            self._picks = self._picks + np.asarray(metrics["picks"], np.int64)
        return float(metrics["loss"]), float(metrics["grad_norm"])

    def routing(self) -> list[list[int]] | None:
        """Return the tokens counted for each expert since the last call, by layer with experts; None without any."""
        found, self._picks = self._picks, 0
        return None if isinstance(found, int) else found.tolist()

    def evaluate(self, tokens: Tokens, targets: Tokens) -> float:
        """Return the mean loss of a global batch, without changing the state."""
        return float(self._steps.evaluate(self._state["params"], self._rows(tokens), self._rows(targets)))

    def _rows(self, array: Tokens) -> jax.Array:
        return shards.divided(array, self._steps.rows)

    def parameters(self) -> Iterator[tuple[str, Weights]]:
        """Yield every parameter, gathered, by its full per-layer name."""
        return shards.whole(self._model, self._state["params"], self._stacks)

    def gradients(self) -> Iterator[tuple[str, Weights]]:
        """Yield the last step's gradients before clipping, if the session was started with `keep_gradients`."""
        assert self._gradients is not None, "start the session with keep_gradients=True and take a step"
        return shards.whole(self._model, self._gradients, self._stacks)

    def pieces(self) -> list[Piece]:
        """Return the pieces (boxes of tensors) of the state that this process saves in a checkpoint."""
        if self._pieces is None:
            self._pieces = state.pieces(self._model, lambda: self._state, self._stacks)
        return self._pieces

    def restore(self, read: Read, optimizer_steps: int) -> None:
        """Load parameters and moments that `read` returns, of a state after `optimizer_steps` updates."""
        where = self._steps.state
        self._state = state.restored(self._model, self._state, where, read, optimizer_steps, self._stacks)
        self.optimizer_steps = optimizer_steps

    def not_finite(self) -> list[str]:
        """Return the devices of this process with non-finite parameters, each with the first such parameter."""
        return state.not_finite(self._state["params"])

    def any(self, flag: bool) -> bool:
        """Return True on every process if `flag` is true on any process; a collective call."""
        return flag if self.world == 1 else shards.any_process(flag)

    def layouts(self) -> dict[str, str]:
        """Return the partition spec of every leaf of the state, by the leaf's path."""
        return shards.specs(self._state)

    def peak_memory_gib(self) -> float | None:
        """Return the peak memory (GiB) of the fullest local device; None if the platform does not report it (CPU)."""
        return shards.peak_memory_gib()

    def reserved_memory_gib(self) -> float | None:
        """Return the most memory (GiB) reserved by the allocator of the fullest local device; None if the platform does
        not report it."""
        return shards.peak_memory_gib("peak_pool_bytes")

    def compile_facts(self) -> CompileFacts:
        text = self._compiled.as_text() if self._compiled is not None else None
        digest = hashlib.sha256(text.encode()).hexdigest() if text else None
        return CompileFacts(uncached=self._uncached, scalar_reads=0, hlo_sha256=digest)

    def profile(self, folder: str) -> AbstractContextManager[object]:
        """Return JAX's profiler as a context manager. It writes a trace for TensorBoard or Perfetto below `folder`,
        with the names that the predicted trace has."""
        from planc.backends.xla.runtime.named_trace import named_trace

        return named_trace(Path(folder), self._names)

    def _names(self) -> dict[str, Name]:
        """Return the new names of the compiled step's instructions in a trace; {} before the first step."""
        from planc.backends.xla.runtime.named_trace import instruction_names

        return instruction_names(self._program, self._compiled.as_text()) if self._compiled is not None else {}

    def close(self) -> None:
        """Free the model, and leave the process group, if there is one."""
        self._state = self._gradients = self._compiled = None
        if self.world > 1:
            shards.leave()
