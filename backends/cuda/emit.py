"""The emitted file: the program of a plan as plain torch, with nothing left to decide.

A pure function of the propagated plan; text only. What the plan does not ask for is not written, so
the file holds no branch on configuration.
"""

from __future__ import annotations

import re

from planc.ir.sharding import Sharded

from . import emit_apply, emit_pipeline, emit_step
from .roles import WHOLE, Roles
from .styles import Styler
from .writing import because, call, comment, lines, tuple_of

IMPORTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torch", ("nn",)),
    ("torch.distributed.device_mesh", ("DeviceMesh", "init_device_mesh")),
    ("torch.distributed.fsdp", ("FSDPModule", "MixedPrecisionPolicy", "fully_shard")),
    (
        "torch.distributed.pipelining",
        (
            "PipelineStage",
            "Schedule1F1B",
            "ScheduleDualPipeV",
            "ScheduleGPipe",
            "ScheduleInterleaved1F1B",
            "ScheduleInterleavedZeroBubble",
            "ScheduleLoopedBFS",
            "ScheduleZBVZeroBubble",
        ),
    ),
    ("torch.distributed.tensor", ("DTensor", "Replicate", "Shard")),
    (
        "torch.distributed.tensor.parallel",
        (
            "ColwiseParallel",
            "PrepareModuleInput",
            "PrepareModuleInputOutput",
            "PrepareModuleOutput",
            "RowwiseParallel",
            "SequenceParallel",
            "loss_parallel",
            "parallelize_module",
        ),
    ),
    ("torch.utils.checkpoint", ("checkpoint",)),
)


def emit(sharded: Sharded) -> str:
    """The text of the program. Deterministic to the byte."""
    roles = Roles(sharded)
    styler = Styler(sharded, roles)
    functions = [
        _build_mesh(),
        *emit_pipeline.split(roles),
        *emit_apply.tensor_parallel(roles, styler),
        *emit_apply.recompute(sharded),
        *emit_apply.fsdp(roles),
        _parallelize(roles, sharded),
        emit_step.loss(roles, styler),
        *emit_pipeline.schedule(roles),
        emit_step.step(roles, styler),
        emit_step.evaluate(roles, styler),
        *emit_step.mean_over_batch(roles),
        emit_step.clip(roles, styler),
        emit_step.data_rank(roles),
    ]
    body = "\n\n\n".join([_constants(roles), *functions])
    return "\n".join([_docstring(sharded), "", _imports(body), "", _guard(), "", body]) + "\n"


def _docstring(sharded: Sharded) -> str:
    plan = sharded.plan
    mesh = " > ".join(f"{a.name} {a.size}" for a in plan.mesh.axes)
    cluster = f"{plan.cluster.count} x {plan.cluster.name}"
    devices = f"{plan.mesh.devices} device{'s' if plan.mesh.devices > 1 else ''}"
    return lines(
        f'"""{plan.name}: {plan.model.name} over {devices}.',
        "\n" + f"plan     {plan.name} (sha256 {plan.sha256[:16]})",
        f"mesh     {mesh}",
        f"cluster  {cluster}",
        "\nCompiled by planc for torch 2.13; change the plan rather than this file. Start one process per",
        "device, initialise torch.distributed, then:",
        "\n    mesh = build_mesh()",
        "    model = parallelize(model, mesh)  # built on torch.device('meta'); then to_empty and fill it",
        "    step = build_step(model, mesh)",
        "    loss = step(tokens, targets)  # this data rank's part of the batch; gradients are in .grad",
        "    norm = clip_grad_norm(model, mesh, 1.0)",
        '"""',
    )


def _imports(body: str) -> str:
    """The import block: only what the body names."""
    plain = [
        "import copy" if "copy." in body else "",
        "from collections.abc import Callable",
        "from functools import partial" if "partial(" in body else "",
        "",
        "import torch",
        "import torch.distributed as dist" if "dist." in body else "",
        "import torch.nn.functional as F",
    ]
    torch_lines = []
    for module, names in IMPORTS:
        used = [n for n in names if re.search(rf"\b{n}\b", body)]
        if used:
            one = f"from {module} import {', '.join(used)}"
            torch_lines.append(one if len(one) <= 110 else call(f"from {module} import (", used))
    first, rest = plain[:3], plain[4:]
    return lines(*first) + "\n\n" + lines(*rest, *torch_lines)


def _guard() -> str:
    return lines(
        'if not torch.__version__.startswith("2.13."):',
        '    raise RuntimeError(f"this program was compiled for torch 2.13, not {torch.__version__}")',
    )


def _constants(roles: Roles) -> str:
    plan = roles.plan
    sizes = [f'"{f.name}": {f.size}' for f in roles.factors]
    whole = any(f.name == WHOLE for f in roles.factors)
    parts = [
        because(plan.mesh.cause),
        comment(f"{WHOLE}: no axis stores state, so fully_shard divides it over one rank") if whole else "",
        call("MESH = {", sizes),
        because(plan.batch.cause),
        f"MICROBATCH_SEQUENCES = {plan.batch.microbatch_sequences}",
    ]
    if roles.pipeline:
        parts.append(f"MICROBATCHES = {plan.microbatches}")
        parts += emit_pipeline.constants(roles)
    if roles.data:
        names = [f'"{f.name}"' for f in roles.data]
        parts += [
            because(plan.cause_of_shard("batch", plan.data_axes[0])),
            f"DATA_AXES = {tuple_of(names)}",
        ]
    return lines(*parts) + "\n\n" + STEP


STEP = """Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"""


def _build_mesh() -> str:
    return '''def build_mesh(device_type: str | None = None) -> DeviceMesh:
    """The mesh over all ranks, outermost axis first. torch.distributed must be initialised."""
    device_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))'''


def _parallelize(roles: Roles, sharded: Sharded) -> str:
    steps = [
        "apply_tp({}, mesh)" if roles.tensor else "",
        "apply_recompute({})" if sharded.plan.recompute.ops else "",
        "apply_fsdp({}, mesh)" if roles.uses_fsdp else "",
    ]
    steps = [s for s in steps if s]
    if not roles.pipeline:
        return lines(
            "def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:",
            '    """Divide `model` in place. The order matters: each function wraps what the ones before made."""',
            *(f"    {s.format('model')}" for s in steps),
            "    return model",
        )
    body = ["    for stage in stages:", *(f"        {s.format('stage')}" for s in steps), "    return stages"]
    return lines(
        "def parallelize(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:",
        '    """This rank\'s stages of `model`, divided. The order matters: each function wraps the ones before."""',
        *(["    stages = split_stages(model, mesh)", *body] if steps else ["    return split_stages(model, mesh)"]),
    )
