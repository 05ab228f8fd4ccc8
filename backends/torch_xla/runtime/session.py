"""Runs an emitted file's functions for the trainer's loop: a model in training on torch_xla."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from planc.backends.cuda.models import family
from planc.ir.session import CompileFacts, Piece

if TYPE_CHECKING:
    from planc.ir.program_text import ProgramText
    from planc.ir.session import Initial, Read, Settings, Tokens, Weights

UNCACHED, READS = "UncachedCompile", "aten::_local_scalar_dense"
"""torch_xla's counters of compiled programs, and of tensor values read on the host."""

CHECKED_AFTER = 2
"""The step after which the shardings of the state are checked."""


def start(program: ProgramText, settings: Settings, initial: Initial) -> XlaSession:
    """Returns the session of `program`; its parameters are placed one after another with the values of `initial`."""
    emitted = program.load()
    mesh = emitted.build_mesh()
    model = filled(program, initial)
    emitted.parallelize(model, mesh)
    optimizer = emitted.AdamW(model, mesh, settings.betas, settings.eps, settings.weight_decay)
    step = emitted.build_step(model, optimizer, mesh, settings.clip_norm or float("inf"))
    return XlaSession(program, emitted, mesh, optimizer, step, emitted.build_evaluate(model, mesh))


def filled(program: ProgramText, initial: Initial) -> nn.Module:
    """Returns the cuda target's bundled module for the model of `program`, with parameters on the XLA device filled
    from `initial`."""
    with torch.device("meta"):
        model: nn.Module = family(program.plan.model.family).build(program.plan.model)
    for name, parameter in list(model.named_parameters()):
        holder, _, last = name.rpartition(".")
        values = nn.Parameter(on_device(initial(name, tuple(parameter.shape))))
        setattr(model.get_submodule(holder), last, values)
    return model


def on_device(values: Weights) -> Tensor:
    """Returns `values` as a tensor on the XLA device."""
    device: Any = import_module("torch_xla").device()
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


class XlaSession:
    """A model in training on torch_xla, in one process for all devices of its host; see `planc.ir.session.Session`."""

    runtime = "torch_xla"
    rank, world = 0, 1

    def __init__(
        self,
        program: ProgramText,
        emitted: Any,
        mesh: Any,
        optimizer: Any,
        step: Callable[..., Tensor],
        evaluate: Callable[..., Tensor],
    ) -> None:
        self.versions = {name: metadata.version(name) for name in ("torch", "torch_xla", "numpy")}
        self.features: tuple[str, ...] = ()
        self._emitted, self._mesh, self._optimizer = emitted, mesh, optimizer
        self._step, self._evaluate = step, evaluate
        self._metrics: Any = import_module("torch_xla.debug.metrics")
        self._uncached = self._reads = 0
        self._taken = 0
        self.optimizer_steps = 0

    def step(self, tokens: Tokens, targets: Tokens, lr: float) -> tuple[float, float]:
        """Runs one optimizer step on the global batch [sequences, S] at learning rate `lr`; returns (mean loss,
        gradient norm)."""
        uncached, reads = self._count(UNCACHED), self._count(READS)
        loss, norm = self._step(tokens, targets, lr).cpu().tolist()
        self._taken += 1
        self.optimizer_steps += math.isfinite(loss) and math.isfinite(norm)
        self._reads += self._count(READS) - reads
        if self._taken > 1:
            self._uncached += self._count(UNCACHED) - uncached
        if self._taken == CHECKED_AFTER:
            misplaced = self.misplaced()
            assert not misplaced, f"state changed its sharding in a step: {misplaced}"
        return loss, norm

    def _count(self, counter: str) -> int:
        return self._metrics.counter_value(counter) or 0

    def evaluate(self, tokens: Tokens, targets: Tokens) -> float:
        """Returns the mean loss per token of a global batch (`tokens` and `targets`, [sequences, S]); changes
        nothing."""
        loss: Any = self._evaluate(tokens, targets).cpu().tolist()
        return float(loss)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Returns parameters and moments on the devices, by kind and full name."""
        o = self._optimizer
        return {"params": o.params, "exp_avg": o.exp_avg, "exp_avg_sq": o.exp_avg_sq}

    def layouts(self) -> dict[str, str]:
        """Returns the sharding of each state tensor, in XLA's notation."""
        spec = import_module("torch_xla")._XLAC._get_xla_sharding_spec
        return {f"{kind}.{name}": spec(t) for kind, tensors in self.state().items() for name, t in tensors.items()}

    def misplaced(self) -> list[str]:
        """Returns the names of state tensors whose sharding differs from the emitted tables."""
        expected = {"params": self._emitted.PARAMS, **dict.fromkeys(("exp_avg", "exp_avg_sq"), self._emitted.OPTIMIZER)}
        found = self.layouts()
        return [
            f"{kind}.{name}"
            for kind, tensors in self.state().items()
            for name in tensors
            if found[f"{kind}.{name}"] != self._sharding_text(expected[kind][self._emitted._pattern(name)])
        ]

    def _sharding_text(self, spec: tuple[Any, ...]) -> str:
        if spec not in (known := self.__dict__.setdefault("_words", {})):
            xs: Any = import_module("torch_xla.distributed.spmd")
            shape = [math.prod(self._emitted.MESH[a] for a in _axes(entry)) for entry in spec]
            probe = on_device(np.zeros(shape, np.float32))
            xs.mark_sharding(probe, self._mesh, spec)
            known[spec] = import_module("torch_xla")._XLAC._get_xla_sharding_spec(probe)
        said: str = known[spec]
        return said

    def parameters(self) -> Iterator[tuple[str, Weights]]:
        """Yields every unsharded parameter, by full name."""
        for name, tensor in self._optimizer.params.items():
            yield name, _on_host(tensor)

    def gradients(self) -> Iterator[tuple[str, Weights]]:
        """Yields every unsharded gradient of the last step, before clipping, by full name."""
        for name, tensor in self._optimizer.grads.items():
            yield name, _on_host(tensor)

    def pieces(self) -> list[Piece]:
        """Returns the pieces of a checkpoint: the whole state, since this process holds all of it."""
        return [
            Piece(f"{kind}.{name}", tuple(t.shape), (0,) * t.ndim, tuple(t.shape), partial(_copy, t))
            for kind, tensors in self.state().items()
            for name, t in tensors.items()
        ]

    @torch.no_grad()
    def restore(self, read: Read, optimizer_steps: int) -> None:
        """Loads parameters and moments that `read` returns, of a state after `optimizer_steps` updates."""
        xs: Any = import_module("torch_xla.distributed.spmd")
        tables = {"params": self._emitted.PARAMS, **dict.fromkeys(("exp_avg", "exp_avg_sq"), self._emitted.OPTIMIZER)}
        for kind, tensors in self.state().items():
            for name, tensor in tensors.items():
                fresh = on_device(read(f"{kind}.{name}", tuple(slice(0, n) for n in tensor.shape)))
                xs.mark_sharding(fresh, self._mesh, tables[kind][self._emitted._pattern(name)])
                tensor.data = fresh
        self._optimizer.steps = on_device(np.full((), optimizer_steps, np.float32))
        self.optimizer_steps = optimizer_steps

    def not_finite(self) -> list[str]:
        """Returns the name of the first parameter that is not finite; [] for none."""
        bad = (name for name, values in self.parameters() if not np.isfinite(values).all())
        return [f"parameter {name}" for name in bad][:1]

    def routing(self) -> list[list[int]] | None:
        """Returns None: counting tokens per expert would read a tensor on the host in each step."""
        return None

    @contextmanager
    def profile(self, folder: str) -> Iterator[None]:
        """Runs torch's profiler; writes a Perfetto trace of the host to `rank-00000.json` in `folder`."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            yield
        found.export_chrome_trace(str(Path(folder) / "rank-00000.json"))

    def any(self, flag: bool) -> bool:
        return flag

    def peak_memory_gib(self) -> float | None:
        """Returns None: torch_xla does not report the peak memory of CPU devices."""
        return None

    def reserved_memory_gib(self) -> float | None:
        """Returns None: reserved memory is not measured."""
        return None

    def compile_facts(self) -> CompileFacts:
        return CompileFacts(uncached=self._uncached, scalar_reads=self._reads)

    def close(self) -> None:
        """Frees the model."""
        self._optimizer = self._step = self._evaluate = None  # type: ignore[assignment]


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def _on_host(tensor: Tensor) -> Weights:
    """Returns the values of a copy of `tensor`: reading `tensor` itself would recompile the next step."""
    array: Weights = tensor.detach().clone().cpu().numpy()
    return array


def _copy(tensor: Tensor, into: Weights) -> None:
    np.copyto(into, _on_host(tensor))
