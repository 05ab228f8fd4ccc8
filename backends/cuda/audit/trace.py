"""Runs one rank of an emitted program on fake tensors over a fake process group: nothing is computed or sent.

It runs on the CPU, because the collectives do not depend on the device type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as pipelining
from torch.distributed.tensor import DTensor

from planc.backends.cuda.analysis.attention import attention_kernel
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.attention import one_kernel_attention
from planc.backends.cuda.audit.balance import balanced
from planc.backends.cuda.audit.equal_blocks import EqualBlocks
from planc.backends.cuda.audit.fake_ranks import fake_rank
from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.norms import one_kernel_norms
from planc.backends.cuda.audit.observe import Observer, made_meshes
from planc.backends.cuda.audit.own_code import one_sequence_a_row
from planc.backends.cuda.audit.places import misplaced, sampled_ranks
from planc.backends.cuda.audit.repeats import ActionRepeats
from planc.backends.cuda.audit.traced import Traced, UnlikeError
from planc.backends.cuda.models import family
from planc.backends.cuda.runtime.compare_module import named
from planc.backends.cuda.runtime.optimizer import optimizer_of
from planc.backends.cuda.runtime.traced.read import module_of
from planc.ir.program_text import ProgramText
from planc.ir.session import Settings
from planc.ir.sharding import Sharded
from planc.sharding.local import local_length

Source = Mapping[str, Any] | str | None
"""A module's config, or the path of a function that builds the module."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def trace(program: ProgramText, stage: int, *, whole: bool = False, source: Source = None) -> Traced:
    """Traces a step on the first rank of pipeline stage `stage`: returns its collectives, its peak memory, and the
    shards of sampled ranks that do not fit the ranks' coordinates.

    The program runs the module built from `source` (a config, or the path of a function); None: planc's own module.
    Optimizer state exists before the traced step. No process group may be initialised. Identical microbatches and
    blocks are skipped and only counted, unless `whole`. Raises UnlikeError if those that ran differ.
    """
    sharded = program.sharded
    emitted = program.load()
    model = _on_meta(program) if source is None else _own(program, source)
    ranks = sampled_ranks(program.plan.mesh.devices)[stage :: program.plan.pipeline]
    wrong = misplaced(program, ranks)
    with _fake_group(sharded, stage), _static_stages(emitted, sharded), balanced(emitted, sharded):
        mesh = emitted.build_mesh("cpu")
        divided = emitted.parallelize(model, mesh)
        modules = divided if isinstance(divided, list) else [divided]
        observer = Observer(*made_meshes(emitted, mesh))
        tracker = MemoryTracker(observer)
        repeats = ActionRepeats(tracker, observer, whole=whole or not _has_equal_microbatches(sharded))
        shortened = repeats.within(emitted) if hasattr(emitted, "build_schedule") else nullcontext()
        with FakeTensorMode(allow_non_fake_inputs=True), shortened, one_sequence_a_row():
            for module in modules:
                module.to_empty(device="cpu")
            step = _Step(program, emitted, divided, modules, mesh, whole=whole)
            blocks = EqualBlocks(tracker, observer)
            if not whole and source is None and _has_equal_blocks(sharded):
                blocks.replace(modules)
            kernels = one_kernel_norms(tracker), _fused(sharded, tracker), matmuls_that_add(emitted, tracker)
            with tracker, kernels[0], kernels[1], kernels[2], host_apart(emitted, tracker):
                tracker.hold(step.state())
                step()
            blocks.check()
        roles = AxisRoles(sharded)
        sizes = {f.name: f.size for f in (*roles.experts.factors, *roles.factors)}
        return Traced(
            stage=stage,
            totals=observer.totals(sizes),
            unparsed=tuple(sorted(observer.unparsed)),
            flops=observer.flops,
            peak_bytes=tracker.peak,
            peak_at=tracker.peak_at,
            counted=tuple(sorted(repeats.counted)),
            counted_blocks=blocks.counted,
            placed=len(ranks),
            misplaced=tuple(wrong),
        )


def _fused(sharded: Sharded, tracker: MemoryTracker) -> AbstractContextManager[None]:
    """A context in which attention is one kernel, unless the plan requests unfused attention."""
    return nullcontext() if attention_kernel(sharded) is None else one_kernel_attention(tracker)


@contextmanager
def host_apart(emitted: ModuleType, tracker: MemoryTracker) -> Iterator[None]:
    """A context in which `tracker` does not count tensors that `emitted` offloads to host memory.

    In a trace the device is the CPU too, where torch's `save_on_cpu` copies nothing: here it makes an uncounted copy.
    """

    def save_on_cpu(**options: bool) -> saved_tensors_hooks:
        def packed(tensor: Tensor) -> Tensor:
            with tracker.uncounted():
                return tensor.clone()

        return saved_tensors_hooks(packed, torch.clone)

    with patch.object(emitted, "save_on_cpu", save_on_cpu) if hasattr(emitted, "save_on_cpu") else nullcontext():
        yield


@contextmanager
def matmuls_that_add(emitted: ModuleType, tracker: MemoryTracker) -> Iterator[None]:
    """A context in which a matmul of `emitted` adds to a sum in fp32 by itself, as on a CUDA device. The CPU makes the
    product first, which `tracker` does not count."""

    def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
        with tracker.uncounted():
            total += left @ right
        tracker.multiply(torch.ops.aten.mm.default, (left, right), total)

    with patch.object(emitted, "add_product", add_product) if hasattr(emitted, "add_product") else nullcontext():
        yield


def _has_equal_microbatches(sharded: Sharded) -> bool:
    """True if the plan has a pipeline in which all microbatches of a stage do the same work.

    This is not so if parameters are freed between microbatches, or if the backward is split into dgrads and wgrads.
    """
    roles, split = AxisRoles(sharded), sharded.plan.split
    stay = not roles.uses_fsdp or not sharded.plan.gathers_each_pass()
    return split is not None and stay and not split.splits_backward


def _has_equal_blocks(sharded: Sharded) -> bool:
    """True if the work of a block depends on its modules alone.

    This is not so for experts (their token counts vary), compiled blocks, a split backward (it walks a block's own
    graph), offloads (their copies overlap other blocks), and buckets or prefetch of parameters.
    """
    plan, experts = sharded.plan, AxisRoles(sharded).experts
    alone = plan.gather is None or (plan.gather.bucket == 1 and not plan.gather.prefetch)
    return alone and not experts.ops and not plan.splits_backward and not plan.compiles and not plan.offloads


class _Step:
    """One training step on zero tokens of this rank's shape: forward, backward, gradient clipping, optimizer update."""

    def __init__(
        self,
        program: ProgramText,
        emitted: ModuleType,
        divided: Any,
        modules: list[nn.Module],
        mesh: Any,
        *,
        whole: bool = True,
    ):
        """With `whole`, the optimizer updates DTensors; otherwise it updates their local shards, which is faster."""
        plan = program.plan
        self._emitted, self._divided, self._modules, self._mesh = emitted, divided, modules, mesh
        self._optimizer = optimizer_of(modules, plan.model, Settings(optimizer=plan.optimizer.name))
        self._parameters = [p for module in modules for p in module.parameters()]
        self._shares = {} if whole else _updated_as_shares(self._optimizer)
        for parameter in self._parameters:
            share = self._shares.get(parameter, parameter)
            share.grad = torch.zeros_like(share)
        self._optimizer.step()
        self._forget_gradients()
        shape = plan.batch.sequences // plan.data_parallel, plan.batch.sequence_tokens
        self._batch = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
        self._run = emitted.build_step(divided, mesh)

    def state(self) -> Iterator[Tensor]:
        yield from self._parameters
        for kept in self._optimizer.state.values():
            yield from (value for value in kept.values() if isinstance(value, Tensor))
        yield from self._batch

    def __call__(self) -> None:
        self._run(*self._batch)
        self._emitted.clip_grad_norm(self._divided, self._mesh, 1.0)
        for parameter, share in self._shares.items():
            share.grad = _share_of_gradient(parameter)
        self._optimizer.step()
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        self._optimizer.zero_grad()
        for parameter in self._parameters:
            parameter.grad = None


def _updated_as_shares(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, nn.Parameter]:
    """Makes AdamW update the local shard of each DTensor parameter; returns a map from parameter to shard.

    The update is elementwise, so DTensor would run the same ops on the same shards, but its dispatch is slow. Muon's
    update is not elementwise.
    """
    if type(optimizer) is not torch.optim.AdamW:
        return {}
    shares: dict[nn.Parameter, nn.Parameter] = {}
    for group in optimizer.param_groups:
        divided: list[Any] = [p for p in group["params"] if isinstance(p, DTensor)]
        shares.update({p: nn.Parameter(p._local_tensor) for p in divided})
        group["params"] = [shares.get(p, p) for p in group["params"]]
    return shares


def _share_of_gradient(parameter: Any) -> Tensor | None:
    """Returns the local shard of a parameter's gradient. Raises UnlikeError if the two have different placements."""
    grad = parameter.grad
    if grad is None:
        return None
    if grad.placements != parameter.placements:
        raise UnlikeError(f"a gradient is placed as {grad.placements}, its parameter as {parameter.placements}")
    local: Tensor = grad._local_tensor
    return local


def _fake_group(sharded: Sharded, stage: int) -> AbstractContextManager[None]:
    """A context in which this process is the first rank of a pipeline stage."""
    plan = sharded.plan
    stride = plan.mesh.axis(plan.split.axis).stride if plan.split else 0
    return fake_rank(plan.mesh.devices, stage * stride)


def _on_meta(program: ProgramText) -> nn.Module:
    """Returns planc's own module for the plan's model, on the meta device."""
    model = program.plan.model
    with torch.device("meta"):
        module: nn.Module = family(model.family).build(model)
    return module


def _own(program: ProgramText, source: Mapping[str, Any] | str) -> Any:
    """Returns the user's module (`source`: a config, or the path of a function) bound to the op graph's names."""
    return named(module_of(source)[0], program)


@contextmanager
def _static_stages(emitted: ModuleType, sharded: Sharded) -> Iterator[None]:
    """A context in which torch's pipeline stages are given their shapes, which torch would otherwise infer by
    communicating."""
    if not hasattr(emitted, "PipelineStage"):
        yield
        return

    name = "Stage" if hasattr(emitted, "Stage") else "PipelineStage"  # before torch 2.12 programs have one of their own
    kind: type[PipelineStage] = getattr(emitted, name)

    def stage(module: nn.Module, index: int, count: int, device: Any, *, group: Any) -> PipelineStage:
        passed = _passed_on(sharded)
        given = _tokens(sharded) if index == 0 else passed
        made = kind(module, index, count, device, group=group, input_args=given, output_args=passed)
        if not hasattr(
            pipelining._PipelineSchedule, "_warmup_p2p"
        ):  # torch 2.11: a first step connects to its neighbours,
            made._get_init_p2p_neighbors_ops = list  # type: ignore[method-assign]
            if index == count - 1:  # and compares the logits with the given output shape
                made._validate_fwd_outputs = lambda _outputs: None  # type: ignore[attr-defined]
        return made

    with patch.object(emitted, name, stage), _without_votes():
        yield


@contextmanager
def _without_votes() -> Iterator[None]:
    """A context in which ranks do not communicate to agree on shape inference.

    Only torch 2.12 to 2.14 would: 2.11 takes the shapes that a stage is given, 2.15 does so on a fake process group.
    """
    if not hasattr(pipelining._PipelineSchedule, "_warmup_p2p"):
        yield
        return
    from torch.distributed.pipelining._utils import InferenceMode

    def set_static_inference(schedule: Any, stages: list[Any], *_: Any) -> None:
        for one in stages:
            one._inference_mode = InferenceMode.STATIC

    with patch.object(pipelining._PipelineSchedule, "_warmup_p2p", set_static_inference):
        yield


def _tokens(sharded: Sharded) -> Tensor:
    batch = sharded.plan.batch
    return torch.empty(batch.microbatch_sequences, batch.sequence_tokens, dtype=torch.int64, device="meta")


def _passed_on(sharded: Sharded) -> Tensor:
    """Returns an empty tensor shaped like the hidden states that a stage sends: the local shard of one microbatch."""
    plan = sharded.plan
    last = sharded.ops[plan.model.blocks[-1]][-1].op.output
    layout = sharded.declared(last)
    shape = [int(local_length(plan, d, layout.get(d, ()))) for d in sharded.model.tensor[last].dims]
    dtype = DTYPES[plan.precision.compute]
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
