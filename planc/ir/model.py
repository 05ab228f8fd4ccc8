"""A model as a graph of ops over named dims, one block derived once and repeated.

`Model` is the family's answer: sizes, parameters and three sections of ops (`first`, the repeated
`block`, `last`). Nothing here knows a mesh or a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

from planc.ir.base import Value

OpKind = Literal["embedding", "matmul", "norm", "rope", "attention", "elementwise", "add", "loss"]
Section = Literal["first", "block", "last"]


@dataclass(frozen=True, kw_only=True)
class Param(Value):
    """A parameter. `shape_dims` groups named dims per tensor dimension, in storage order.

    A linear layer stores [out, in]: `wq` is ((heads, head_dim), (embed,)). `*` in the name stands
    for the layer's number.
    """

    name: str
    shape_dims: tuple[tuple[str, ...], ...]
    section: Section
    init: Literal["normal", "ones"] = "normal"
    decay: bool = True

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(d for group in self.shape_dims for d in group)


@dataclass(frozen=True, kw_only=True)
class Tensor(Value):
    """An activation. `saved_as` is its dtype: the compute dtype, fp32, or integers without gradient."""

    name: str
    dims: tuple[str, ...]
    region: str
    dtype: Literal["compute", "fp32", "int"] = "compute"


@dataclass(frozen=True, kw_only=True)
class Op(Value):
    """One operation: inputs and params to one output, over an index space of named dims.

    `whole` are dims that must not be divided while this op runs (the norm's embed, the softmax's
    head_dim); propagation gathers them. `saves` names what the backward needs: inputs, output, or
    small statistics.
    """

    name: str
    kind: OpKind
    region: str
    module: str
    """Path of the runtime's module that does this op; `*` stands for the layer's number."""
    inputs: tuple[str, ...]
    params: tuple[str, ...] = ()
    output: str
    whole: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Model(Value):
    """A model family applied to sizes. `sizes` maps dim to length; `layers` is the block count."""

    name: str
    family: str
    sizes: dict[str, int]
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tied: bool = False
    params: tuple[Param, ...]
    tensors: tuple[Tensor, ...]
    ops: dict[Section, tuple[Op, ...]]

    @cached_property
    def tensor(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def param(self) -> dict[str, Param]:
        return {p.name: p for p in self.params}

    @property
    def layers(self) -> int:
        return self.sizes["layers"]

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """The regions a `shard ... in REGION` may name."""
        seen = [op.region for ops in self.ops.values() for op in ops] + [t.region for t in self.tensors]
        return tuple(dict.fromkeys(seen))

    def op_names(self) -> tuple[str, ...]:
        return tuple(op.name for ops in self.ops.values() for op in ops)

    def shape(self, param: Param) -> tuple[int, ...]:
        """Global shape in storage order."""
        return tuple(prod(self.sizes[d] for d in group) for group in param.shape_dims)

    def elements(self, param: Param) -> int:
        """Number of elements in one copy (one layer)."""
        return prod(self.shape(param))

    def copies(self, param: Param) -> int:
        return self.layers if param.section == "block" else 1

    @property
    def parameters(self) -> int:
        """All parameters of the model."""
        return sum(self.elements(p) * self.copies(p) for p in self.params)
