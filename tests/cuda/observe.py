"""Counts the collectives that torch really issues, by operation and mesh dimension."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planc.backends.cuda.roles import Roles
from planc.backends.cuda.rules import realise
from planc.ir.sharding import Sharded
from planc.sharding import semantic_collectives

OPS = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "send": "send_recv",
}
"""Names of the dispatcher. A receive is the other end of a send, and not counted."""

Key = tuple[str, str]
"""(operation, mesh dimension)"""
Total = tuple[int, int]
"""(calls, payload bytes): the larger of the input and the output of each call."""


def ranks_of(group: Any) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


class Observer(TorchDispatchMode):
    """While it is entered, every collective that a process group is asked for is counted."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.dimension = {ranks_of(mesh.get_group(name)): name for name in mesh.mesh_dim_names}
        self.calls: Counter[Key] = Counter()
        self.payload: Counter[Key] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor turns itself into plain tensors and collectives first
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(func._schema.name.split("::")[1], [args, kwargs or {}])
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, arguments: Any) -> None:
        if name not in OPS:
            return
        leaves = tree_leaves(arguments)
        group = next(found for leaf in leaves if (found := self._group(leaf)))
        payload = max(t.numel() * t.element_size() for t in leaves if isinstance(t, torch.Tensor))
        if name == "all_gather_into_tensor":  # functional: only the input is an argument
            payload *= next(leaf for leaf in leaves if type(leaf) is int)
        self.calls[OPS[name], group] += 1
        self.payload[OPS[name], group] += payload

    def _group(self, leaf: Any) -> str:
        """The mesh dimension of an argument that is a group. DTensor may use an equal, earlier mesh's."""
        if isinstance(leaf, torch.ScriptObject) and "ProcessGroup" in str(leaf._type()):
            return self.dimension.get(ranks_of(dist.ProcessGroup.unbox(leaf)), "elsewhere")
        if isinstance(leaf, str) and leaf in dist.distributed_c10d._world.pg_names.values():
            return self.dimension.get(ranks_of(_resolve_process_group(leaf)), "elsewhere")
        return ""

    def totals(self, sizes: dict[str, int]) -> dict[Key, Total]:
        """Without the dimensions of size 1, which move nothing."""
        keys = [k for k in self.calls if sizes.get(k[1], 2) > 1]
        return {k: (self.calls[k], self.payload[k]) for k in keys}


def predicted(sharded: Sharded, stage: int) -> dict[Key, Total]:
    """The realised collectives of a pipeline stage, with what each send carries."""
    factors = Roles(sharded).factors
    calls: Counter[Key] = Counter()
    payload: Counter[Key] = Counter()
    for row in realise(sharded, semantic_collectives(sharded)):
        if row.stage == stage:
            key = row.op, next(f.name for f in factors if set(row.axes) <= set(f.axes))
            calls[key] += row.count
            payload[key] += round(row.payload_bytes)
    return {k: (calls[k], payload[k]) for k in calls}


def differences(observed: dict[Key, Total], expected: dict[Key, Total]) -> list[str]:
    """What was seen but not predicted, in words; empty when they agree in calls and bytes."""
    return [
        f"{op} over {dimension}: predicted {expected.get((op, dimension), (0, 0))}, "
        f"observed {observed.get((op, dimension), (0, 0))}"
        for op, dimension in sorted({*observed, *expected})
        if observed.get((op, dimension)) != expected.get((op, dimension))
    ]
