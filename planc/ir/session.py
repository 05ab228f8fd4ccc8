"""The interface between the trainer and a backend's run time. No framework is imported here.

A backend's `runtime` module answers `Runtime`; its `start` returns a `Session`, which holds the
model, the optimizer state and the process group. The loop sees nothing else of a framework.
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
"""(full parameter name, e.g. `layers.3.attention.wq.weight`; global shape) -> its first values."""

Read = Callable[[str, tuple[slice, ...]], "Weights"]
"""(tensor of the state by name, a box of it) -> the values there."""

STATE = ("params", "exp_avg", "exp_avg_sq")
"""Kinds of state of a session: parameters and AdamW's two moments. A tensor of the state is called by its kind and the
parameter's full name: `exp_avg.layers.3.attention.wq.weight`."""


SECOND_MOMENT = "exp_avg_sq"
"""Not there for parameters that Muon updates."""


class CollectiveError(RuntimeError):
    """A collective that did not complete: a rank or the network is gone, and the session with it."""


@dataclass(frozen=True)
class Piece:
    """A box of one tensor of the state, held by this process. Each element of the state is in exactly one
    piece over all processes."""

    name: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    size: tuple[int, ...]
    copy_to: Callable[[Weights], None]
    """Copy the values as they are now into an array of `size`."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run beside its plan: the optimizer's hyper-parameters and the seed.

    AdamW as both stacks do it: m and v in fp32 with bias correction, eps outside the root, decay
    decoupled (w -= lr * weight_decay * w) and only on parameters whose `Param.decay` is true.
    """

    seed: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    optimizer: str = "adamw"
    """`adamw`, or `muon` for the matrices of the blocks with AdamW for the rest; see `planc.ir.updates`."""
    momentum: float = 0.95
    """Muon's."""
    decay_groups: tuple[tuple[str, float], ...] = ()
    """(glob over parameter names of the op graph, weight decay): the last that fits goes before `weight_decay`."""
    clip_norm: float = 1.0
    """Global L2 norm that gradients are scaled down to; 0 leaves them as they are."""
    balance_loss: float = 0.0
    """The coefficient of the load-balancing loss, for models with experts; 0: none."""
    count_routing: bool = False
    """Count how often each expert is picked."""
    skip_not_finite: bool = False
    """A step whose loss or gradient norm is no number leaves the state as it was."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time; those that have no such form are an error."""


@dataclass(frozen=True)
class CompileFacts:
    """Compiler activity during the steps; None where the runtime does not report it."""

    uncached: int | None = None
    """Compilations that found nothing in the cache, after the warm-up step."""
    scalar_reads: int | None = None
    """Device values read one at a time by the host during the steps (`.item()`)."""
    hlo_sha256: str | None = None
    """sha256 of the optimized program's text."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Session(Protocol):
    """A model under training on this process. Every rank makes the same calls in the same order."""

    rank: int
    world: int
    """Processes, not devices: 1 for a runtime that drives all devices from one process."""
    runtime: str
    """For the receipt: `torch`, `jax`, `torch_xla`."""
    versions: dict[str, str]
    """Framework packages and their versions."""
    features: tuple[str, ...]
    """Fused kernels, compilers and fallbacks in use, by name."""

    def step(self, tokens: Tokens, targets: Tokens, lr: float) -> tuple[float, float]:
        """One optimizer step on the global batch.

        Args:
            tokens: token ids, [sequences, sequence_tokens]: the whole global batch, the same on every rank.
            targets: the id of the token that follows each, of the same shape.
            lr: learning rate of this step.

        Returns, on every rank: the mean loss per token (nats) over the global batch before the update, and the global
        L2 norm of the gradient before clipping.
        """
        ...

    def evaluate(self, tokens: Tokens, targets: Tokens) -> float:
        """The mean loss per token (nats) over a global batch, on every rank; nothing is changed.

        `tokens` and `targets` are as in `step`.
        """
        ...

    def parameters(self) -> Iterator[tuple[str, Weights]]:
        """Every parameter whole, by full per-layer name; on every rank, as gathering is collective."""
        ...

    def pieces(self) -> list[Piece]:
        """This process's share of the state, the same pieces in the same order at every call; every
        process must make the first call, as it is collective."""
        ...

    def restore(self, read: Read, optimizer_steps: int) -> None:
        """Take the state from `read`, as after that many updates; every process reads only what it holds."""
        ...

    @property
    def optimizer_steps(self) -> int:
        """Number of updates made so far, AdamW's step count."""
        ...

    def routing(self) -> list[list[int]] | None:
        """Number of picks of each expert since the last call, [layers][experts];
        collective. None where nothing was counted."""
        ...

    def not_finite(self) -> list[str]:
        """The ranks and tensors with NaN or infinity, after a step whose loss or norm is not finite; a collective."""
        ...

    def any(self, flag: bool) -> bool:
        """True on every process if `flag` is true on any; a collective."""
        ...

    def peak_memory_gib(self) -> float | None:
        """The most device memory this process has held since `start`; None where not measured."""
        ...

    def reserved_memory_gib(self) -> float | None:
        """The most device memory that the framework's allocator has taken, used or not; None where not measured."""
        ...

    def compile_facts(self) -> CompileFacts:
        """Compiler activity of this process so far, for the receipt."""
        ...

    def profile(self, folder: str) -> AbstractContextManager[object]:
        """A context in which the framework's profiler traces this process; when it ends its files are in `folder`."""
        ...

    def close(self) -> None:
        """Leave the process group and free the model. Called once, also after a failure."""
        ...


class Runtime(Protocol):
    """The result of `Backend.runtime`. It imports its framework inside these functions, since `prepare_environment`
    must come before that import."""

    def prepare_environment(self, devices: int) -> None:
        """Set what the framework reads at start-up: virtual devices, threads, log levels.

        `devices` is the plan's number of devices. A runtime that drives several of them from one process makes as many
        virtual CPU devices where there is no accelerator.
        """
        ...

    def start(self, program: ProgramText, settings: Settings, initial: Initial) -> Session:
        """Start the plan's program over all its devices; ranks come from RANK, WORLD_SIZE, MASTER_*.

        `initial` gives the first values of each parameter, `settings` the optimizer's hyper-parameters.
        """
        ...

    def start_single(self, program: ProgramText, settings: Settings, initial: Initial) -> Session:
        """The undivided model of `program` in this one process: the reference for parity. Arguments as for `start`."""
        ...
