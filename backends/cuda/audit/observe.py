"""Counts the collectives that torch issues, by operation, mesh dimension and dtype, and the FLOPs of its matmuls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planc.ir.audit import Key, Total, Totals

OPS = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send_recv",
}
"""Collectives by the dispatcher's names. A receive is the other end of a send, and is not counted."""

SILENT = {"recv_", "wait_tensor", "_wrap_tensor_autograd"}
"""Ops that transfer no bytes themselves."""

DTYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "float8",
    torch.float8_e5m2: "float8",
    torch.int32: "int32",
    torch.int64: "int64",
}

MATMULS = {"mm": 0, "bmm": 0, "_scaled_mm": 0, "_grouped_mm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1}
"""Matmuls by their names in aten, with the place of the left factor among the arguments."""
MATMUL: Key = "matmul", "", ""
"""Key of the FLOPs of matmuls in an observer's log."""

ELSEWHERE = "elsewhere"
"""Name for a process group that is no dimension of a mesh."""


def matmul_flops(name: str, args: Any, made: Any) -> int:
    """Returns the FLOPs of the matmul `name` (of MATMULS) of `args` with the result `made`, two per multiply-add."""
    left = args[MATMULS[name]]
    # Where groups divide the dim that is summed (the gradients of experts' weights), each sums its part of it.
    groups = len(made) if made.dim() > left.dim() else 1
    return int(2 * made.numel() * left.shape[-1] // groups)


def ranks_of(group: Any) -> tuple[int, ...]:
    """Returns the global ranks of a process `group`."""
    return tuple(dist.get_process_group_ranks(group))


def made_meshes(emitted: Any, mesh: Any) -> tuple[Any, ...]:
    """Returns the device `mesh` of an `emitted` program, and all meshes that its functions derive from this one."""
    made = (getattr(emitted, name)(mesh) for name in MADE if hasattr(emitted, name))
    return (mesh, *(m for m in made if m is not None))


def meshes_of(emitted: Any, mesh: Any) -> tuple[Any, ...]:
    """Returns the meshes of an `emitted` program, as `made_meshes`. Asserts that this rank's coordinate in each mesh is
    also its index in the process groups, because collectives place data by that index."""
    meshes = made_meshes(emitted, mesh)
    for m in meshes:
        numbers = tuple(m.get_local_rank(name) for name in m.mesh_dim_names)
        assert numbers == m.get_coordinate(), (
            f"rank {m.get_rank()} is {numbers} in its groups, not {m.get_coordinate()}"
        )
    return meshes


MADE = ("context_mesh", "joined_mesh", "build_expert_mesh", "ends_mesh")
"""Functions of an emitted program that return another mesh over the same ranks."""


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts every collective.

    A process group is named after the dimension of `meshes` with the same ranks; the first such mesh decides.
    """

    def __init__(self, *meshes: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        names = [(ranks_of(m.get_group(name)), name) for m in reversed(meshes) for name in m.mesh_dim_names]
        self.dimension = dict(names)
        self.calls: Counter[Key] = Counter()
        self.payload: Counter[Key] = Counter()
        self.log: list[tuple[Key, int]] = []
        self.unparsed: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor first dispatches to plain tensors and collectives
        self.see(func, args, kwargs)
        return func(*args, **(kwargs or {}))

    def see(self, func: Any, args: Any, kwargs: Any = None) -> None:
        """Counts the call of `func` with `args` and `kwargs`, if it is a collective."""
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(func._schema.name.split("::")[1], [args, kwargs or {}])

    def multiply(self, func: Any, args: Any, made: Any) -> None:
        """Counts the FLOPs of the call of `func` with `args`, two per multiply-add, if it is a matmul; `made` is its
        result."""
        if func.namespace == "aten" and func._opname in MATMULS:
            self._add(MATMUL, matmul_flops(func._opname, args, made))

    @property
    def flops(self) -> int:
        """FLOPs of the matmuls counted so far. Kernels of attention have none."""
        return self.payload[MATMUL]

    def repeat(self, calls: Iterable[tuple[Key, int]]) -> None:
        """Counts collectives and matmuls that were not run. `calls` are pairs of a key and the payload in bytes."""
        for key, payload in calls:
            self._add(key, payload)

    def _count(self, name: str, arguments: Any) -> None:
        if name in SILENT:
            return
        if name not in OPS:
            self.unparsed.add(name)
            return
        leaves = tree_leaves(arguments)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        group = next(self._groups(leaves))
        key = OPS[name], self.dimension.get(ranks_of(group), ELSEWHERE), DTYPES[tensors[0].dtype]
        payload = max(t.numel() * t.element_size() for t in tensors)
        if name == "all_gather_into_tensor":  # functional: only the input is an argument
            payload *= dist.get_world_size(group)
        if name == "all_to_all_single":  # and the output's split sizes
            rows = sum(arguments[0][1])
            payload = max(payload, rows * tensors[0].shape[1:].numel() * tensors[0].element_size())
        self._add(key, payload)

    def _add(self, key: Key, payload: int) -> None:
        self.log.append((key, payload))
        self.calls[key] += 1
        self.payload[key] += payload

    def _groups(self, leaves: list[Any]) -> Iterator[Any]:
        """Yields the process groups among the arguments of an op, given as handles or by name."""
        for leaf in leaves:
            if isinstance(leaf, torch.ScriptObject) and "ProcessGroup" in str(leaf._type()):
                yield dist.ProcessGroup.unbox(leaf)
            elif isinstance(leaf, str) and leaf in dist.distributed_c10d._world.pg_names.values():
                yield dist.distributed_c10d._resolve_process_group(leaf)  # type: ignore[attr-defined, arg-type]

    def totals(self, sizes: dict[str, int]) -> Totals:
        """Returns calls and bytes counted so far. Mesh dimensions of one rank are left out, because they transfer
        nothing; `sizes` are the sizes of the mesh dimensions, by name."""
        keys = [k for k in self.calls if k != MATMUL and sizes.get(k[1], 2) > 1]
        return {k: Total(self.calls[k], self.payload[k]) for k in keys}
