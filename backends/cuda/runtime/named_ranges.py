"""Runs a step in profiler ranges with the names of the predicted trace: actions, recompute, collectives, optimizer.

torch's functions are wrapped only while a profiler runs, so that other steps have no overhead. Collectives issued by
autograd's C++ code or inside compiled blocks keep torch's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import stage as pipelining
from torch.profiler import record_function
from torch.utils import checkpoint

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.observe import ELSEWHERE, OPS, ranks_of
from planc.backends.cuda.audit.predict import dimension_of
from planc.backends.cuda.rules import realise
from planc.costing.step.span_names import TransferNames, action_name, optimizer_cause, part_name
from planc.ir.program_text import ProgramText
from planc.pipeline.actions import LETTERS, Kind
from planc.sharding.collectives import semantic_collectives

METHODS = {
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "allreduce": "all_reduce",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send_recv",
    "recv": "send_recv",
}
"""Process group methods that issue a collective; torch 2.13 renamed three of them."""
FUNCTIONAL = tuple(op for op in OPS if not op.endswith("_") and op != "send")
"""Functional collectives, which DTensor and emitted programs issue."""


@contextmanager
def named_ranges(
    program: ProgramText, modules: Sequence[nn.Module], meshes: tuple[Any, ...], optimizer: torch.optim.Optimizer
) -> Iterator[None]:
    """A context in which a step of `program` runs inside named profiler ranges.

    Args:
        program: the program whose step runs.
        modules: the model, or this rank's pipeline stages.
        meshes: the device meshes that the program's collectives use; empty in a single process.
        optimizer: the optimizer whose update gets a range.
    """
    ranges = _Ranges(program, meshes)
    with ExitStack() as stack:
        for owner, name, replacement in ranges.patches(modules, optimizer):
            stack.enter_context(patch.object(owner, name, replacement))
        yield


class _Ranges:
    """Wraps the functions that a step calls in profiler ranges, and tracks which forward or backward is running."""

    def __init__(self, program: ProgramText, meshes: tuple[Any, ...]) -> None:
        sharded = program.sharded
        roles = AxisRoles(sharded)
        rows = realise(sharded, semantic_collectives(sharded)) if meshes else ()
        self._plan, self._piped = program.plan, bool(roles.pipeline) and bool(meshes)
        self._transfers = TransferNames((dimension_of(roles, row), row) for row in rows)
        named = [(ranks_of(m.get_group(name)), name) for m in reversed(meshes) for name in m.mesh_dim_names]
        self._dimensions = dict(named)
        self._inside: list[str] = []
        """The running actions as letters, such as `0F3`, innermost last."""
        self._forwards = self._backwards = 0

    def patches(
        self, modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yields the functions to replace: (object, attribute name, new function)."""
        update = part_name("", "optimizer", [optimizer_cause(self._plan)])
        yield optimizer, "step", self._ranged(optimizer.step, lambda: update)
        replay = checkpoint._CheckpointFrame.__init__
        yield checkpoint._CheckpointFrame, "__init__", self._with_named_replay(replay)
        if self._piped:
            stage = pipelining._PipelineStageBase
            for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                yield stage, name, self._of_stage(name, getattr(stage, name))
        else:
            for kind in {type(module) for module in modules}:
                yield kind, "__call__", self._in_action("forward", kind.__call__)
            yield torch.autograd, "backward", self._in_action("backward", torch.autograd.backward)
        for name, op in ((name, op) for name, op in METHODS.items() if hasattr(dist.ProcessGroup, name)):
            yield dist.ProcessGroup, name, self._of_group(op, getattr(dist.ProcessGroup, name))
        if not self._plan.compiles:  # the compiler inspects these functions
            for name in FUNCTIONAL:
                yield torch.ops._c10d_functional, name, _Functional(self, name)

    def _ranged(self, function: Callable[..., Any], name: Callable[[], str]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with record_function(name()):
                return function(*arguments, **named)

        return call

    @contextmanager
    def _action(self, kind: Kind, stage: int, microbatch: int) -> Iterator[None]:
        self._inside.append(f"{stage}{LETTERS[kind]}{microbatch}")
        try:
            with record_function(action_name(kind, stage, microbatch)):
                yield
        finally:
            self._inside.pop()

    def _in_action(self, kind: Kind, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` wrapped in a range: each call is a forward or backward of the next microbatch, or an
        evaluation."""

        def call(*arguments: Any, **named: Any) -> Any:
            if kind == "forward" and not torch.is_grad_enabled():
                with record_function("evaluation"):
                    return function(*arguments, **named)
            count = self._forwards if kind == "forward" else self._backwards
            self._forwards += kind == "forward"
            self._backwards += kind == "backward"
            with self._action(kind, 0, count % self._microbatches):
                return function(*arguments, **named)

        return call

    @property
    def _microbatches(self) -> int:
        return self._plan.microbatches

    def _of_stage(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the method `name` of a pipeline stage, wrapped in a profiler range."""

        def call(stage: Any, microbatch: int, *arguments: Any, **named: Any) -> Any:
            kind: Kind = "forward" if name == "forward_one_chunk" else "backward"
            if name == "backward_weight_one_chunk":
                kind = "backward_weight"
            elif kind == "backward" and not named.get("full_backward", True):
                kind = "backward_input"
            with self._action(kind, stage.stage_index, microbatch):
                return function(stage, microbatch, *arguments, **named)

        return call

    def _with_named_replay(self, begin: Callable[..., None]) -> Callable[..., None]:
        """Returns the constructor `begin` of torch's checkpoint frame, wrapped so that recomputes are ranges."""

        def name() -> str:
            return part_name(self._inside[-1] if self._inside else "", "recompute", [self._plan.recompute.cause])

        def call(frame: Any, recompute_fn: Callable[..., Any], *arguments: Any, **named: Any) -> None:
            begin(frame, self._ranged(recompute_fn, name), *arguments, **named)

        return call

    def _of_group(self, op: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **named: Any) -> Any:
            with record_function(self.transfer(op, group)):
                return method(group, *arguments, **named)

        return call

    def transfer(self, op: str, group: Any) -> str:
        dimension = self._dimensions.get(ranks_of(group), ELSEWHERE)
        return self._transfers.name(op, dimension, self._inside[-1].strip("0123456789") if self._inside else "")


class _Functional:
    """A functional collective that runs in a profiler range; all other attributes are those of torch's op."""

    def __init__(self, ranges: _Ranges, name: str) -> None:
        self._ranges, self._op, self._function = ranges, OPS[name], getattr(torch.ops._c10d_functional, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(self._function, *arguments, **named)

    def default(self, *arguments: Any, **named: Any) -> Any:
        return self._call(self._function.default, *arguments, **named)

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        group = dist.distributed_c10d._resolve_process_group(arguments[-1])  # type: ignore[attr-defined]
        with record_function(self._ranges.transfer(self._op, group)):
            return function(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)
