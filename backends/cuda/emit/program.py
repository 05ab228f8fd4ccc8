"""Emits the program of a plan as plain torch code.

The text depends on the propagated plan and torch's version only. Only what the plan uses is emitted, so the program has
no branches on configuration.
"""

from __future__ import annotations

import re

from planc.backends.common.source_writer import because, call, file_of, fill, lines, tuple_of
from planc.backends.cuda.analysis.expert_mesh import WHOLE
from planc.backends.cuda.analysis.placements import STRIDED
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.backends.cuda.emit import (
    blocks,
    context_parallel,
    experts,
    fine_tuning,
    global_ops,
    loss,
    parallelize,
    pipeline,
    quantize,
    ranks,
    step,
    tied,
)
from planc.backends.cuda.versions import TORCH
from planc.diag.quoting import python_docstring, python_string
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.ir.version import Version, dotted

IMPORTS: tuple[tuple[str, str], ...] = (
    ("torch", "nn"),
    ("torch._inductor", "config as inductor_config"),
    ("torch.autograd.graph", "save_on_cpu"),
    ("torch.distributed._symmetric_memory", "enable_symm_mem_for_group"),
    ("torch.distributed.device_mesh", "DeviceMesh init_device_mesh"),
    ("torch.distributed.fsdp", "CPUOffloadPolicy FSDPModule MixedPrecisionPolicy fully_shard"),
    (
        "torch.distributed.pipelining",
        "PipelineStage Schedule1F1B ScheduleDualPipeV ScheduleGPipe ScheduleInterleaved1F1B "
        "ScheduleInterleavedZeroBubble ScheduleLoopedBFS ScheduleZBVZeroBubble",
    ),
    ("torch.distributed.tensor", "DTensor Partial Placement Replicate Shard distribute_module distribute_tensor"),
    (
        "torch.distributed.tensor.parallel",
        "ColwiseParallel ParallelStyle PrepareModuleInput PrepareModuleInputOutput PrepareModuleOutput RowwiseParallel "
        "SequenceParallel loss_parallel parallelize_module",
    ),
    ("torch.distributed.tensor.placement_types", STRIDED),
    ("torch.nn.attention", "SDPBackend sdpa_kernel"),
    ("torch.utils.checkpoint", "CheckpointPolicy checkpoint create_selective_checkpoint_contexts"),
    ("torchao.float8", "Float8LinearConfig convert_to_float8_training"),
)
"""Every torch name that an emitted file may import. All but one are public."""


def emit(sharded: Sharded, torch: Version = TORCH.pinned) -> str:
    """Returns the source of the program of `sharded` for a version of `torch`; equal inputs give equal text."""
    roles = AxisRoles(sharded, torch)
    styler = Styler(sharded, roles)
    functions = (
        _build_mesh(roles),
        fine_tuning.functions(roles),
        pipeline.split(roles),
        parallelize.state_dtype(roles),
        quantize.functions(roles),
        parallelize.joined_mesh(roles),
        parallelize.tensor_parallel(roles, styler),
        context_parallel.context(roles),
        experts.functions(roles),
        blocks.kernel(roles),
        parallelize.recompute(sharded),
        blocks.compiling(roles),
        parallelize.fsdp(roles),
        loss.leave_head(styler),
        _parallelize(roles, sharded),
        loss.functions(styler),
        pipeline.schedule(roles),
        global_ops.sum_gradients(roles),
        tied.functions(roles),
        step.functions(roles, styler),
        global_ops.mean_over_batch(roles),
        global_ops.total_norm(roles),
        global_ops.clip(roles),
        global_ops.data_rank(roles),
    )
    constants = _constants(roles)
    imports = _imports("\n".join((constants, *functions)))
    return file_of([_docstring(roles), imports, TORCH.guard(sharded, torch), constants], functions, width=120)


def _build_mesh(roles: AxisRoles) -> str:
    """Emits build_mesh. Ranks are numbered as in the plan's mesh; the order of the mesh dimensions is torch's."""
    mesh = roles.plan.mesh
    axes = mesh.in_order(mesh.sizes)
    moved = roles.arranged != axes
    return fill(
        BUILD_MESH,
        said="torch's order of them" if moved else "outermost axis first",
        ranks=fill(
            """
            <laid>
            ranks = <ranks>.reshape(tuple(MESH.values()))
            return DeviceMesh(device_type, ranks, mesh_dim_names=tuple(MESH))
            """,
            laid=ranks.laid(mesh, axes),
            ranks=ranks.arranged(mesh, axes, roles.arranged),
        )
        if moved
        else "return init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))",
    )


BUILD_MESH = '''
def build_mesh(device_type: str | None = None) -> DeviceMesh:
    """The mesh over all ranks, <said>. torch.distributed must be initialised."""
    device_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    <ranks>
'''


def _docstring(roles: AxisRoles) -> str:
    plan = roles.plan
    return fill(
        '''
        """<name>: <model> over <devices>.

        plan     <name> (sha256 <digest>)
        mesh     <mesh>
        cluster  <cluster>

        Compiled by planc for torch <torch>; change the plan rather than this file. Start one process per
        device, initialise torch.distributed, then:

            mesh = build_mesh()
            model = parallelize(model, mesh)  # built on torch.device("meta"); then to_empty and fill it
            step = build_step(model, mesh)
            loss = step(tokens, targets)  # this data rank's part of the batch; gradients are in .grad
            norm = clip_grad_norm(model, mesh, 1.0)
        """
        ''',
        torch=dotted(roles.torch),
        name=python_docstring(plan.name),
        model=python_docstring(plan.model.name),
        devices=f"{plan.mesh.devices} device{'s' if plan.mesh.devices > 1 else ''}",
        digest=plan.sha256[:16],
        mesh=python_docstring(" > ".join(f"{a.name} {a.size}" for a in plan.mesh.axes)),
        cluster=f"{plan.cluster.count} x {python_docstring(plan.cluster.name)}",
    )


def _imports(body: str) -> str:
    """Emits the imports of the names that `body` uses."""
    standard = lines(
        "import copy" if "copy.deepcopy(" in body else "",
        "import math" if "math." in body else "",
        "import warnings",
        "from collections.abc import Callable" + "".join(f", {n}" for n in ("Iterable", "Iterator") if f"{n}[" in body),
        _import_line("functools", [n for n, used in (("cache", "@cache"), ("partial", "partial(")) if used in body]),
        "from typing import Any" if "Any," in body else "",
    )
    torch = [
        "import torch",
        "import torch.distributed as dist" if "dist." in body else "",
        "import torch.distributed._functional_collectives as fc" if "fc." in body else "",
        "import torch.nn.functional as F" if re.search(r"\bF\.", body) else "",
    ]
    for module, listed in IMPORTS:
        names = [listed] if " as " in listed else listed.split()
        used = [n for n in names if re.search(rf"\b{n.split()[-1]}\b", body)]
        one = f"from {module} import {', '.join(used)}"
        if used:
            torch.append(one if len(one) <= 110 else call(f"from {module} import (", used))
    return f"{standard}\n\n{lines(*torch)}"


def _import_line(module: str, names: list[str]) -> str:
    return f"from {module} import {', '.join(names)}" if names else ""


def _constants(roles: AxisRoles) -> str:
    plan = roles.plan
    whole = any(f.name == WHOLE for f in roles.factors)
    return fill(
        """
        <mesh_cause>
        <whole>
        <mesh>
        <batch_cause>
        MICROBATCH_SEQUENCES = <microbatch>
        <tokens>
        <stages>
        <data>
        <lora>
        <chunks_cause>
        <chunks>

        Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
        """,
        mesh_cause=because(plan.mesh.cause),
        whole=_why_whole(roles) if whole else "",
        mesh=call("MESH = {", [f"{python_string(f.name)}: {f.size}" for f in roles.factors]),
        batch_cause=because(plan.batch.cause),
        microbatch=str(plan.batch.microbatch_sequences),
        tokens=f"SEQUENCE_TOKENS = {plan.batch.sequence_tokens}" if roles.context else "",
        stages=pipeline.constants(roles),
        data=_data_axes(roles),
        lora=fine_tuning.constants(roles),
        chunks_cause=because(plan.chunked_loss.cause) if plan.chunked_loss else "",
        chunks=f"LOSS_CHUNKS = {plan.loss_chunks}" if plan.chunked_loss else "",
    )


def _why_whole(roles: AxisRoles) -> str:
    if not roles.uses_fsdp:
        return f"# {WHOLE}: no axis has more than one rank"
    return f"# {WHOLE}: no axis stores state, so fully_shard divides it over one rank"


def _data_axes(roles: AxisRoles) -> str:
    if not roles.data:
        return ""
    names = tuple_of([python_string(f.name) for f in roles.data])
    dim, axes = ("batch", roles.plan.data_axes) if roles.plan.data_axes else ("sequence", roles.context)
    return lines(because(roles.plan.cause_of_shard(dim, axes[0])), f"DATA_AXES = {names}")


def _parallelize(roles: AxisRoles, sharded: Sharded) -> str:
    module = "stage" if roles.pipeline else "model"
    steps = lines(
        _products(roles.plan),
        f"apply_lora({module})" if roles.plan.lora else "",
        f"apply_state_dtype({module})" if roles.state_dtype != "fp32" else "",
        f"apply_float8({module})" if roles.plan.quantize else "",
        f"apply_tp({module}, mesh)" if roles.tensor else "",
        f"apply_cp({module}, mesh)" if roles.context else "",
        f"apply_ep({module}{_expert_mesh(roles)})" if roles.experts.styled else "",
        f"apply_freeze({module})" if roles.sharded.model.has_frozen else "",
        *blocks.in_order(roles, module),
        f"leave_head_to_loss({module})" if roles.plan.loss_chunks > 1 else "",
        f"apply_fsdp({module}, mesh{', expert_mesh' if roles.experts.own_mesh else ''})" if roles.uses_fsdp else "",
    )
    expert_mesh = "expert_mesh = build_expert_mesh(mesh)" if roles.experts.own_mesh else ""
    if not roles.pipeline:
        return fill(PARALLELIZE, experts=expert_mesh, steps=steps)
    return fill(PARALLELIZE_STAGES if steps else ONLY_SPLIT, experts=expert_mesh, steps=steps)


def _products(plan: Plan) -> str:
    if not plan.precision.products:
        return ""
    return lines(because(plan.precision.cause), 'torch.set_float32_matmul_precision("high")')


def _expert_mesh(roles: AxisRoles) -> str:
    return (", expert_mesh" if roles.experts.own_mesh else ", mesh") if roles.experts.apart else ""


PARALLELIZE = '''
def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Parallelize `model` in place. The order matters: each function wraps the result of those before it."""
    <experts>
    <steps>
    return model
'''

PARALLELIZE_STAGES = '''
def parallelize(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Parallelize this rank's stages. The order matters: each function wraps the result of those before it."""
    <experts>
    stages = split_stages(model, mesh)
    for stage in stages:
        <steps>
    return stages
'''

ONLY_SPLIT = '''
def parallelize(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """This rank's stages of `model`."""
    return split_stages(model, mesh)
'''
