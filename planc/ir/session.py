"""The interface by which the trainer uses a backend's framework. This module imports no framework.

A backend's `runtime` module implements `Runtime`; its `start` returns a `Session`, which holds the model, the optimizer
state and the process group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from planc.diag.fast_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planc.ir.program_text import ProgramText

    Tokens = NDArray[np.int32]
    """Token ids, [sequences, sequence_tokens]: the whole global batch, the same on every rank."""
    Weights = NDArray[np.float32]

Initial = Callable[[str, tuple[int, ...]], "Weights"]
"""Maps (full parameter name, e.g. `layers.3.attention.wq.weight`; global shape) to initial values."""

Read = Callable[[str, tuple[slice, ...]], "Weights"]
"""Maps (state tensor by name, a box of it) to its values."""

STATE = ("params", "exp_avg", "exp_avg_sq")
"""Kinds of state of a session: parameters and AdamW's two moments. A state tensor is named by its kind and the
parameter's full name: `exp_avg.layers.3.attention.wq.weight`."""


SECOND_MOMENT = "exp_avg_sq"
"""Absent for parameters that Muon updates."""


class CollectiveError(RuntimeError):
    """A collective failed, because a rank or the network did. The session cannot go on."""


@dataclass(frozen=True)
class Piece:
    """The part of one state tensor (a parameter, or a moment of the optimizer) that this process stores: a box at
    `offset` of shape `size`. The pieces of all processes cover each element exactly once."""

    name: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    size: tuple[int, ...]
    copy_to: Callable[[Weights], None]
    """Copies the current values into an array of shape `size`."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run that are not in its plan: the optimizer's hyper-parameters and the seed.

    AdamW is the same on torch and JAX: m and v in fp32 with bias correction, eps outside the root, weight decay
    decoupled (w -= lr * weight_decay * w) and only for parameters whose `Param.decay` is true.
    """

    seed: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    optimizer: str = "adamw"
    """`adamw`, or `muon` for the matrices of the blocks with AdamW for the rest; see `planc.ir.updates`."""
    momentum: float = 0.95
    """Momentum of Muon."""
    decay_groups: tuple[tuple[str, float], ...] = ()
    """(glob over parameter names of the op graph, weight decay): the last match overrides `weight_decay`."""
    clip_norm: float = 1.0
    """Global L2 norm at which gradients are clipped; 0 disables clipping."""
    balance_loss: float = 0.0
    """Coefficient of the load-balancing loss, for models with experts; 0 disables it."""
    count_routing: bool = False
    """Count how often each expert is selected."""
    skip_not_finite: bool = False
    """Skip the update of a step with a non-finite loss or gradient norm."""
    deterministic: bool = False
    """Use only algorithms with bitwise reproducible results; an op without one is an error."""


@dataclass(frozen=True)
class CompileFacts:
    """The compiler's activity during the steps. A field is None if the runtime does not report it."""

    uncached: int | None = None
    """Compilations that missed the cache, after the warm-up step."""
    scalar_reads: int | None = None
    """Device values that the host read one at a time during the steps (`.item()`)."""
    hlo_sha256: str | None = None
    """sha256 of the optimized program's text."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Session(Protocol):
    """A model in training, on this process. All ranks must make the same calls in the same order."""

    rank: int
    world: int
    """Processes, not devices: 1 for a runtime that drives all devices from one process."""
    runtime: str
    """Name for the receipt: `torch`, `jax`, `torch_xla`."""
    versions: dict[str, str]
    """Framework packages and their versions."""
    features: tuple[str, ...]
    """Fused kernels, compilers and fallbacks in use, by name."""

    def step(self, tokens: Tokens, targets: Tokens, lr: float) -> tuple[float, float]:
        """Run one optimizer step on the global batch.

        Args:
            tokens: token ids, [sequences, sequence_tokens]: the whole global batch, the same on every rank.
            targets: the id of the token that follows each, of the same shape.
            lr: learning rate of this step.

        Returns, on every rank: the mean loss per token (nats) over the global batch before the update, and the global
        L2 norm of the gradient before clipping.
        """
        ...

    def evaluate(self, tokens: Tokens, targets: Tokens) -> float:
        """Return the mean loss per token (nats) over a global batch, on every rank. The model is not updated.

        `tokens` and `targets` are as in `step`.
        """
        ...

    def parameters(self) -> Iterator[tuple[str, Weights]]:
        """Yield the name (with its layer index) and the unsharded values of every parameter. All ranks must call it."""
        ...

    def pieces(self) -> list[Piece]:
        """Return the parts of the state that this process stores, the same list at every call. All ranks must make the
        first call."""
        ...

    def restore(self, read: Read, optimizer_steps: int) -> None:
        """Load the state after `optimizer_steps` updates. `read` returns the values of this process's parts of the
        state."""
        ...

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer updates so far."""
        ...

    def routing(self) -> list[list[int]] | None:
        """Return how often each expert was selected since the last call, [layers][experts]; None if that is not
        counted. All ranks must call it."""
        ...

    def not_finite(self) -> list[str]:
        """Return the ranks and tensors with NaN or infinity, after a step whose loss or gradient norm is not finite.
        All ranks must call it."""
        ...

    def any(self, flag: bool) -> bool:
        """Return True on all processes if `flag` is true on one of them. All ranks must call it."""
        ...

    def peak_memory_gib(self) -> float | None:
        """Return the peak device memory (GiB) that this process allocated since `start`; None if not measured."""
        ...

    def reserved_memory_gib(self) -> float | None:
        """Return the peak device memory (GiB) that the framework's allocator reserved; None if not measured."""
        ...

    def compile_facts(self) -> CompileFacts:
        """Return what the compiler did on this process so far."""
        ...

    def profile(self, folder: str) -> AbstractContextManager[object]:
        """Return a context in which the framework's profiler traces this process, and then writes to `folder`."""
        ...

    def close(self) -> None:
        """Leave the process group and free the model. The trainer calls it once, also after a failure."""
        ...


class Runtime(Protocol):
    """The interface by which a worker process starts training, the result of `Backend.runtime`. Its methods import the
    framework, because `prepare_environment` must run before that import."""

    def prepare_environment(self, devices: int) -> None:
        """Set what the framework reads at start-up, such as threads and log levels.

        If one process drives several devices and there is no accelerator, `devices` (the plan's number) virtual CPU
        devices are created.
        """
        ...

    def start(self, program: ProgramText, settings: Settings, initial: Initial) -> Session:
        """Start the plan's program on all its devices. RANK, WORLD_SIZE and MASTER_* identify this process.

        `settings` has the optimizer's hyper-parameters; `initial` returns the initial values of a parameter.
        """
        ...

    def start_single(self, program: ProgramText, settings: Settings, initial: Initial) -> Session:
        """Start the model of `program`, unsharded, in this one process: the reference that sharded runs are compared
        with. The arguments are those of `start`."""
        ...
