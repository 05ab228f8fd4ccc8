"""Adds the balancing loss to the routers of a training session, and counts their tokens per expert over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.models.balance import Balance, whole
from planc.backends.cuda.models.moe import MoE
from planc.ir.plan import Plan
from planc.ir.program_text import ProgramText
from planc.ir.session import Settings
from planc.ir.sharding import Sharded


class WatchedRouters:
    """The routers of a rank whose tokens are counted; none if the model has no experts, or if the settings request
    neither counts nor a balancing loss."""

    def __init__(
        self, modules: list[nn.Module], program: ProgramText, settings: Settings, mesh: Any, device: torch.device
    ) -> None:
        sharded, plan = program.sharded, program.plan
        self._plan, self._mesh, self._device = plan, mesh, device
        found = {_layer(path): m for module in modules for path, m in module.named_modules() if isinstance(m, MoE)}
        wanted = settings.count_routing or settings.balance_loss
        self._routers: dict[int, MoE] = found if wanted else {}
        for router in self._routers.values():
            picked = torch.zeros(plan.model.sizes["experts"], dtype=torch.int64, device=device)
            router.balance = Balance(_slope(sharded, settings, mesh), picked, _total(program, mesh))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A context that counts the tokens of one step. Before the first step, torch's pipeline runs each stage on
        tensors of its own to learn their shapes: their tokens are not counted."""
        clean_up = getattr(PipelineStage, "_post_metadata_inference_cleanup", None)  # torch 2.11 has none
        if not self._routers or clean_up is None:
            yield
            return

        def forget(stage: PipelineStage) -> None:
            clean_up(stage)
            for router in self._routers.values():
                assert router.balance is not None
                router.balance.picked.zero_()

        with patch.object(PipelineStage, "_post_metadata_inference_cleanup", forget):
            yield

    def picks(self) -> list[list[int]] | None:
        """Returns the number of tokens per MoE layer and expert since the last call; None if tokens are not counted. A
        collective."""
        plan = self._plan
        routed = [n for n, kind in enumerate(plan.model.kinds) if any(o.kind == "route" for o in plan.model.ops[kind])]
        every = torch.zeros(len(routed), plan.model.sizes.get("experts", 0), dtype=torch.int64, device=self._device)
        for layer, router in self._routers.items():
            assert router.balance is not None
            every[routed.index(layer)] = router.balance.picked
            router.balance.picked.zero_()
        if self._mesh is not None and every.numel():
            dist.all_reduce(every)
            every //= _ranks_with_same_tokens(plan)
        return every.tolist() if every.any() else None


def _layer(path: str) -> int:
    return int(path.split("layers.")[1].split(".")[0])


def _slope(sharded: Sharded, settings: Settings, mesh: Any) -> float:
    """Returns the coefficient of the balancing loss per sequence, such that the averaged gradient of a step has the
    coefficient of the settings.

    Gradients are averaged over data ranks, and over context-parallel ranks, each of which has only some tokens of a
    sequence. A pipeline schedule divides gradients by the number of microbatches; without a pipeline, the loss itself
    is divided.
    """
    plan = sharded.plan
    if mesh is None:
        return settings.balance_loss / plan.batch.sequences
    each = plan.batch.microbatch_sequences * (1 if plan.pipeline > 1 else plan.microbatches)
    return settings.balance_loss * plan.mesh.size(*AxisRoles(sharded).context) / each


def _total(program: ProgramText, mesh: Any) -> Callable[[Tensor], Tensor]:
    """Returns a function that sums token counts over the ranks that have other tokens of the same sequences."""
    plan = program.plan
    axes = plan.mesh.in_order(plan.axes_of("sequence", "residual"))
    if mesh is None or not axes:
        return whole
    groups = _groups(program, mesh, axes)

    def summed(counts: Tensor) -> Tensor:
        every = counts.clone()
        for group in groups:
            dist.all_reduce(every, group=group)
        return every

    return summed


def _groups(program: ProgramText, mesh: Any, axes: tuple[str, ...]) -> list[Any]:
    """Returns the process groups over the context-parallel and sequence-parallel axes among `axes`, at most one of
    each."""
    roles, emitted = AxisRoles(program.sharded), program.load()
    rest = tuple(a for a in axes if a not in roles.context)
    names = [roles.context_name] if len(rest) < len(axes) else []
    names += [roles.dimension(rest)] if rest else []
    found = []
    for name in names:
        apart = name not in mesh.mesh_dim_names
        found.append((emitted.context_mesh(mesh) if apart else mesh).get_group(name))
    return found


def _ranks_with_same_tokens(plan: Plan) -> int:
    """Returns the number of ranks that run the same layer on the same tokens."""
    tokens = {*plan.axes_of("batch", "residual"), *plan.axes_of("sequence", "residual")}
    return plan.mesh.devices // (plan.mesh.size(*plan.mesh.in_order(tokens)) * plan.pipeline)
