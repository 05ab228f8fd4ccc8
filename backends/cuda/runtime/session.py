"""Runs the functions of an emitted program for the trainer's loop."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib import metadata
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from planc.backends.cuda.runtime import state
from planc.backends.cuda.runtime.collective_timeout import collectives_named
from planc.backends.cuda.runtime.fine_tuning import in_every_layer
from planc.backends.cuda.runtime.named_ranges import named_ranges
from planc.backends.cuda.runtime.optimizer import optimizer_of
from planc.backends.cuda.runtime.routing import WatchedRouters
from planc.backends.cuda.runtime.shards import gathered, norm
from planc.ir.model import Model
from planc.ir.program_text import ProgramText
from planc.ir.session import CompileFacts, Piece, Read, Settings

Tokens = NDArray[np.int32]
GIB = 2**30
P = ParamSpec("P")
R = TypeVar("R")


def collective(method: Callable[Concatenate[TorchSession, P], R]) -> Callable[Concatenate[TorchSession, P], R]:
    """Wraps `method`, in which ranks communicate: if a rank does not respond, it raises CollectiveError."""

    @wraps(method)
    def call(session: TorchSession, /, *arguments: P.args, **named: P.kwargs) -> R:
        with session._named():
            return method(session, *arguments, **named)

    return call


class TorchSession:
    """A model in training on torch, as the trainer sees it; see `planc.ir.session.Session`."""

    runtime = "torch"

    def __init__(
        self,
        program: ProgramText,
        settings: Settings,
        modules: list[nn.Module],
        device: torch.device,
        *,
        step: Any,
        evaluate: Any,
        clip: Any,
        slice_of: tuple[int, int] = (0, 1),
        mesh: Any = None,
        meshes: tuple[Any, ...] = (),
        pipeline: str = "",
    ) -> None:
        """`meshes` are the device meshes of the program's collectives; `mesh` is the first (None: a single process)."""
        self.rank = dist.get_rank() if mesh is not None else 0
        self.world = dist.get_world_size() if mesh is not None else 1
        self.versions = {name: metadata.version(name) for name in ("torch", "numpy")}
        model = program.plan.model
        self._names = parameter_names(model)
        self._trained = [name for name in self._names if not model.param[in_every_layer(name)].frozen]
        self.mesh = mesh
        self._program, self._meshes = program, meshes
        self._modules, self._device, self._pipeline = modules, device, pipeline
        self._step, self._evaluate, self._clip = step, evaluate, clip
        self._slice_of = slice_of
        self._clip_norm = settings.clip_norm
        self.features = (*features_of(program, device), *(_named(settings)))
        self._optimizer = optimizer_of(modules, program.plan.model, settings, fused=fused(program, device))
        self.optimizer_steps = 0
        self._pieces: list[Piece] | None = None
        self._routers = WatchedRouters(modules, program, settings, mesh, device)

    def _named(self) -> AbstractContextManager[None]:
        return nullcontext() if self.mesh is None else collectives_named(self._meshes)

    @collective
    def step(self, tokens: Tokens, targets: Tokens, lr: float) -> tuple[float, float]:
        """Runs one optimizer step on the global batch [sequences, S] at learning rate `lr`; returns (mean loss,
        gradient norm)."""
        self._optimizer.zero_grad()
        with self._routers.counting():
            loss = self._step(self._local_rows(tokens), self._local_rows(targets))
        norm = self._clip(self._clip_norm or float("inf"))
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        if math.isfinite(float(loss)) and math.isfinite(float(norm)):  # else the state stays valid, to find the rank
            self._optimizer.step()
            self.optimizer_steps += 1
        return float(loss), float(norm)

    @collective
    def evaluate(self, tokens: Tokens, targets: Tokens) -> float:
        """Returns the mean loss per token (nats) of a global batch, `tokens` and `targets` [sequences, S]. Changes no
        state."""
        return float(self._evaluate(self._local_rows(tokens), self._local_rows(targets)))

    @collective
    def routing(self) -> list[list[int]] | None:
        """Returns the tokens per MoE layer and expert since the last call; None if not counted. A collective."""
        return self._routers.picks()

    def parameters(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yields the full name and unsharded value of every parameter, one at a time. A collective."""
        with self._named():
            yield from gathered(self._modules, self._names, self.mesh, self._pipeline, lambda p: p)

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yields the full name and unsharded value of every gradient of the last step, after clipping. Frozen
        parameters have none. A collective."""
        with self._named():
            yield from gathered(self._modules, self._trained, self.mesh, self._pipeline, _gradient)

    @collective
    def gradient_norms(self) -> dict[str, float]:
        """Returns the norm of every gradient of the last step, after clipping, by full parameter name. A collective."""
        here = {name: norm(p.grad) for m in self._modules for name, p in m.named_parameters() if p.grad is not None}
        every: list[dict[str, float]] = [here] * self.world
        if self.mesh is not None:
            dist.all_gather_object(every, here)
        found = {name: value for rank in every for name, value in rank.items()}
        return {name: found[name] for name in self._names if name in found}

    @collective
    def pieces(self) -> list[Piece]:
        """Returns the shards of parameters and moments that this rank saves. The first call is a collective."""
        if self._pieces is None:
            state.with_moments(self._optimizer, self.optimizer_steps)
            self._pieces = state.pieces(self._modules, self._optimizer, divided=self.mesh is not None)
        return self._pieces

    @collective
    def restore(self, read: Read, optimizer_steps: int) -> None:
        """Loads parameters and moments with the function `read`, as they were after `optimizer_steps` updates."""
        state.with_moments(self._optimizer, optimizer_steps)
        state.restore(self._modules, self._optimizer, read)
        self.optimizer_steps = optimizer_steps

    @collective
    def not_finite(self) -> list[str]:
        """Returns a text for each rank with a NaN or infinite parameter, with the name of the first. If there is none,
        does the same for gradients."""
        here = state.not_finite(self._modules)
        if self.mesh is None:
            return [f"rank {self.rank}: {here}"] if here else []
        every: list[str] = [""] * self.world
        dist.all_gather_object(every, here)
        parameters = [f"rank {rank}: {what}" for rank, what in enumerate(every) if what.startswith("parameter")]
        return parameters or [f"rank {rank}: {what}" for rank, what in enumerate(every) if what]

    @collective
    def any(self, flag: bool) -> bool:
        """Returns True on every rank if `flag` is True on at least one rank; a collective."""
        if self.mesh is None:
            return flag
        said = torch.tensor(int(flag), device=self._device)
        dist.all_reduce(said, op=dist.ReduceOp.MAX)
        return bool(said)

    def peak_memory_gib(self) -> float | None:
        """Peak of allocated device memory (GiB); on CPU the process's peak resident memory."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / GIB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB

    def reserved_memory_gib(self) -> float | None:
        """Peak of the device memory that torch's allocator reserved (GiB); None on CPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_reserved(self._device) / GIB

    def compile_facts(self) -> CompileFacts:
        return CompileFacts()

    @contextmanager
    def profile(self, folder: str) -> Iterator[None]:
        """A context in which torch's profiler runs. Writes a Perfetto trace to `rank-RRRRR.json` in `folder`, whose
        ranges have the names of the predicted trace."""
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        ranges = named_ranges(self._program, self._modules, self._meshes, self._optimizer)
        with torch.profiler.profile(activities=kinds) as found, ranges:
            yield
        found.export_chrome_trace(os.path.join(folder, f"rank-{self.rank:05}.json"))

    def close(self) -> None:
        """Destroys the process group."""
        if self.mesh is not None and dist.is_initialized():
            dist.destroy_process_group()

    def _local_rows(self, batch: Tokens) -> Tensor:
        index, count = self._slice_of
        rows = batch.shape[0] // count
        mine = batch[index * rows : (index + 1) * rows].astype(np.int64)
        return torch.from_numpy(mine).to(self._device)


def parameter_names(model: Model) -> list[str]:
    """Returns the full names of all parameters of `model`: before the blocks, in each layer, after the blocks."""
    first, last = ([p.name for p in model.params if p.section == s] for s in ("first", "last"))
    layers = [
        p.name.replace("*", str(i))
        for i in range(model.layers)
        for p in model.params
        if any(s in model.blocks and model.layers_of(s, i, i + 1) for s in p.sections)
    ]
    return [*first, *layers, *last]


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "no step has been made"
    return parameter.grad


def features_of(program: ProgramText, device: torch.device) -> tuple[str, ...]:
    """Returns the names of the kernels, compilers and policies of `program` on `device`, for the run's record."""
    plan = program.plan
    kernel = f"attention.{plan.attention.method}" if plan.attention else ""
    beside = f"attention.{plan.attention.kernel.method}" if plan.attention and plan.attention.kernel else ""
    settled = "deterministic" if torch.are_deterministic_algorithms_enabled() else ""
    update = "adamw.fused" if fused(program, device) else "adamw.foreach"
    compiled = ["compile.loss" if c.what == "loss" else f"compile.{c.method}" for c in plan.compiles]
    compiled += [f"overlap.{o.method}" for o in plan.overlaps if device.type == "cuda"]
    return tuple(
        name for name in (kernel, beside, update, *compiled, "offload" if plan.offloads else "", settled) if name
    )


def _named(settings: Settings) -> tuple[str, ...]:
    return () if settings.optimizer == "adamw" else (f"optimizer.{settings.optimizer}",)


def fused(program: ProgramText, device: torch.device) -> bool:
    """True if `program` can use a fused optimizer kernel on `device`: not on a GPU with its state on the host."""
    return device.type == "cpu" or not program.plan.state_on_host
