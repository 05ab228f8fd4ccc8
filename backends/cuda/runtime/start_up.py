"""Starts a program on torch: environment, process groups, initial state. The trainer runs the training loop.

Processes find each other by RANK, WORLD_SIZE and MASTER_*. They communicate by NCCL with CUDA devices, else by gloo.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.observe import meshes_of
from planc.backends.cuda.models import family
from planc.backends.cuda.runtime import collective_timeout
from planc.backends.cuda.runtime.fine_tuning import fine_tune
from planc.backends.cuda.runtime.reference import SingleStep
from planc.backends.cuda.runtime.session import TorchSession
from planc.backends.cuda.runtime.shards import Initial, fill
from planc.ir.model import Model
from planc.ir.program_text import ProgramText
from planc.ir.session import Settings

Build = Callable[[Model], nn.Module]


def prepare_environment(devices: int) -> None:
    """Sets one OpenMP thread per process, because ranks share the cores, unless the user has set a number. `devices` is
    not used: each device has its own process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    collective_timeout.prepare()


def start(program: ProgramText, settings: Settings, initial: Initial, build: Build | None = None) -> TorchSession:
    """Starts the plan's program over all its ranks, with parameters from `initial`, and returns the session.

    `build` builds the unsharded module of the plan's model; None: planc's own module for the model's family.
    """
    device = _device()
    _choose_algorithms(settings)
    if not dist.is_initialized():
        collective_timeout.prepare()
        with collective_timeout.joining():
            dist.init_process_group(
                _backend(program, device), timeout=collective_timeout.timeout(), device_id=_only_cuda(device)
            )
    emitted = program.load()
    with collective_timeout.joining():
        mesh = emitted.build_mesh(device.type)
        divided = emitted.parallelize(_on_meta(program.plan.model, build), mesh)
        meshes = meshes_of(emitted, mesh)
    modules = divided if isinstance(divided, list) else [divided]
    collective_timeout.limit(meshes)
    with collective_timeout.collectives_named(meshes):
        _fill(modules, torch.device("cpu") if program.plan.state_on_host else device, initial)
    return TorchSession(
        program,
        settings,
        modules,
        device,
        step=emitted.build_step(divided, mesh),
        evaluate=emitted.build_evaluate(divided, mesh),
        clip=lambda max_norm: emitted.clip_grad_norm(divided, mesh, max_norm),
        slice_of=emitted.data_rank(mesh),
        mesh=mesh,
        meshes=meshes,
        pipeline=_pipeline(program),
    )


def start_single(
    program: ProgramText, settings: Settings, initial: Initial, build: Build | None = None
) -> TorchSession:
    """Starts the unsharded model of `program` in this process and returns the session; the sharded program is compared
    with it. Arguments as for `start`."""
    device = _device()
    _choose_algorithms(settings)
    model = _on_meta(program.plan.model, build)
    fine_tune(model, program.plan)
    _fill([model], device, initial)
    single = SingleStep(model, program.plan)
    return TorchSession(
        program,
        settings,
        [model],
        device,
        step=single.step,
        evaluate=single.evaluate,
        clip=single.clip,
    )


def _on_meta(model: Model, build: Build | None) -> nn.Module:
    make = build or family(model.family).build
    with torch.device("meta"):
        module: nn.Module = make(model)
    return module


def _fill(modules: list[nn.Module], device: torch.device, initial: Initial) -> None:
    for module in modules:
        module.to_empty(device=device)
    fill(modules, initial)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _backend(program: ProgramText, device: torch.device) -> str:
    """Returns torch.distributed's backends: NCCL for tensors on a CUDA device, gloo for tensors on the host."""
    if device.type != "cuda":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if program.plan.state_on_host else "nccl"


def _choose_algorithms(settings: Settings) -> None:
    torch.manual_seed(settings.seed)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(settings.deterministic)


def _only_cuda(device: torch.device) -> torch.device | None:
    return device if device.type == "cuda" else None


def _pipeline(program: ProgramText) -> str:
    roles = AxisRoles(program.sharded)
    return roles.name("pipeline") if roles.pipeline else ""
