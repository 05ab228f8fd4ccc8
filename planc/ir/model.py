"""A model as a graph of ops over tensor dims. Each kind of block is described once, and repeated.

A `Model` has sizes, parameters, and ops in sections: `first` (before the blocks), one section for each kind of block
(most models have one, `block`), and `last`. It is independent of mesh and plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from math import prod
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause, Value
from planc.ir.cache import Cache
from planc.ir.field_types import (
    Count,
    Line,
    ModelName,
    ModulePath,
    Name,
    NameOrEmpty,
    NameOrPath,
    NotNegative,
    Positive,
)
from planc.ir.saved_by_code import Elements, SavedByCode, Unseen

OpKind = Literal[
    "embedding",
    "matmul",
    "norm",
    "rope",
    "attention",
    "scan",
    "elementwise",
    "add",
    "route",
    "combine",
    "code",
    "loss",
]
"""Kinds of ops. `scan` is the convolution and the recurrence of a state-space layer. `route` selects experts for each
token and lays the tokens out by expert; `combine` is its inverse. `code` is a model's own op of no other kind, which
cannot be sharded."""
Section = Name
"""`first`, `last`, or a kind of block."""

ROUTED = "dispatch"
"""The region of tokens on their way to experts and back: sharded as tokens are, over the experts' axes."""
EXPERTS = "experts"
"""The region of the experts."""
LORA_RANK = "lora_rank"
"""The inner dim of a low-rank update (LoRA)."""
LORA_A, LORA_B = ".lora_a", ".lora_b"
"""Name suffixes of its matrices, A [rank, in] and B [out, rank]; B A is added to a weight [out, in]."""
SLOTS = "slots"
"""The dim of the token slots of one expert. Its axes follow from those of batch and sequence."""


@dataclass(frozen=True, kw_only=True)
class Param(Value):
    """A parameter. `shape_dims` groups named dims per array dim, in storage order.

    A linear layer stores [out, in]: `wq` is ((heads, head_dim), (embed,)). `*` in the name stands for the layer index.
    """

    name: ModulePath
    shape_dims: tuple[tuple[Name, ...], ...]
    section: Section
    also: tuple[Section, ...] = ()
    """Further sections with this parameter: other kinds of block with one of this name and shape, or `last` if the
    output is tied to the embedding."""
    region: NameOrEmpty = ""
    """The region of the op that uses it, for sentences such as `store ... for experts`."""
    init: Literal["normal", "ones", "zeros"] = "normal"
    decay: bool = True
    frozen: bool = False
    """True if it is not trained: it has no gradient and no optimizer state."""

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(d for group in self.shape_dims for d in group)

    @property
    def sections(self) -> tuple[Section, ...]:
        """Every section of the model (`first`, a kind of block, `last`) that has this parameter."""
        return (self.section, *self.also)


@dataclass(frozen=True, kw_only=True)
class Tensor(Value):
    """An activation. `dtype` is the compute dtype, fp32, or integers without gradient."""

    name: Name
    dims: tuple[Name, ...]
    region: Name
    dtype: Literal["compute", "fp32", "int"] = "compute"


@dataclass(frozen=True, kw_only=True)
class Op(Value):
    """One operation from inputs and params to one output, over an index space of named dims.

    `whole` are dims that this op cannot have sharded (the norm's embed, the softmax's head_dim); propagation gathers
    them. `saves` names what the backward needs: inputs, output, or small statistics.
    """

    name: Name
    kind: OpKind
    region: Name
    module: ModulePath
    """Path of the runtime module that runs this op; `*` stands for the layer index."""
    inputs: tuple[Name, ...]
    params: tuple[ModulePath, ...] = ()
    output: Name
    whole: tuple[Name, ...] = ()
    saves: tuple[Name, ...] = ()
    whole_of: dict[Name, tuple[Name, ...]] = field(default_factory=dict)
    """Inputs that are needed whole in some dims although the op itself is sharded in them: attention computes its own
    rows of the sequence, and each row needs all keys and values."""
    window: Count = 0
    """Sliding window of attention: the number of rows that a row attends to; 0 for all."""
    fixed: tuple[NameOrPath, ...] = ()
    """Inputs and parameters without a gradient, in a model with frozen parameters: the frozen ones, and inputs that
    depend on no trained parameter. () if all are trained."""
    code_line: Line = ""
    """`FILE:LINE` of the source of a `code` op."""
    code_why: Line = ""
    """The reason why a `code` op is of no other kind, in words."""
    multiply_adds: tuple[Elements, ...] = ()
    """Multiply-adds of a `code` op in one forward, by the dims that they scale with."""
    own_code: tuple[SavedByCode, ...] = ()
    """Memory of the module's own code, if the op was read from code, for increasing sequence lengths; (): the op's
    minimum."""

    @property
    def has_backward(self) -> bool:
        """True if the op needs a gradient: a parameter is trained, or an input depends on a trained one."""
        return not self.fixed or any(name not in self.fixed for name in (*self.inputs, *self.params))

    @property
    def weights(self) -> tuple[ModulePath, ...]:
        """The parameters of the op, without the matrices of a LoRA update."""
        return tuple(p for p in self.params if not p.endswith((LORA_A, LORA_B)))

    @property
    def update(self) -> tuple[ModulePath, ...]:
        """The matrices A and B of the op's LoRA update; () if it has none."""
        return tuple(p for p in self.params if p.endswith((LORA_A, LORA_B)))


def passed_on(ops: Sequence[Op]) -> Name:
    """Return the name of the tensor that a block with these `ops` passes to the next block: the last output which the
    block also reads from the previous block. If there is none, it is the output of the last op."""
    made: set[Name] = set()
    taken: set[Name] = set()
    for op in ops:
        taken |= {*op.inputs} - made
        made.add(op.output)
    return next((op.output for op in reversed(ops) if op.output in taken), ops[-1].output)


@dataclass(frozen=True, kw_only=True)
class Run(Value):
    """`layers` consecutive blocks of one kind."""

    section: Section
    layers: Positive


@dataclass(frozen=True, kw_only=True)
class Routing(Value):
    """Expert selection: how a router scores, selects and weights the experts of a token.

    `scores` are softmax or sigmoid of the logits. The `top_k` best are selected, from the `groups_kept` best of
    `groups` equal groups of experts; `normed` weights sum to one before they are multiplied by `scale`. DeepSeek-AI
    2024, "DeepSeek-V2" (section 2.2) and "DeepSeek-V3 Technical Report" (section 2.1).
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    normed: bool = True
    scale: NotNegative = 1.0
    groups: Positive = 1
    groups_kept: Positive = 1


@dataclass(frozen=True, kw_only=True)
class Model(Value):
    """A model family with concrete sizes. `sizes` maps dim to length; `layers` is the block count.

    `runs` are the consecutive kinds of block; () if there is one kind, `block`.
    """

    name: ModelName
    family: Name
    sizes: dict[Name, Positive]
    rope_theta: NotNegative = 10000.0
    rope_scaling: dict[Name, bool | Count | NotNegative | Line] = field(default_factory=dict)
    """RoPE scaling for longer contexts, in the config's own keys; changes no shape."""
    norm_eps: NotNegative = 1e-5
    tied: bool = False
    top_k: Count = 0
    """Experts per token; 0 without experts."""
    routing: Routing = Routing()
    runs: tuple[Run, ...] = ()
    params: tuple[Param, ...]
    tensors: tuple[Tensor, ...]
    ops: dict[Section, tuple[Op, ...]]
    unseen: tuple[Unseen, ...] = ()
    """Sequence lengths for which the ops of a model read from code do not cover what the code saves."""
    cause: Cause | None = None
    """The sentence that names the model; None outside a plan."""

    @cached_property
    def cache(self) -> Cache:
        """Cache for results that depend on the model alone."""
        return Cache()

    @cached_property
    def tensor(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def param(self) -> dict[str, Param]:
        return {p.name: p for p in self.params}

    @property
    def layers(self) -> int:
        """Number of blocks that a pipeline divides into stages: the layers, and the MTP modules after them."""
        return self.sizes["layers"] + self.sizes.get("mtp_layers", 0)

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """The parts of the model with a layout of their own, which `shard ... in REGION` may name."""
        seen = [op.region for ops in self.ops.values() for op in ops] + [t.region for t in self.tensors]
        return tuple(dict.fromkeys(seen))

    def op_names(self) -> tuple[str, ...]:
        """Return the names of all ops, each once, in the order of the sections."""
        return tuple(dict.fromkeys(op.name for ops in self.ops.values() for op in ops))

    @cached_property
    def blocks(self) -> tuple[Section, ...]:
        """The kinds of block (their sections), in order of first appearance."""
        return tuple(dict.fromkeys(run.section for run in self.runs)) or ("block",)

    @property
    def block_ops(self) -> tuple[Op, ...]:
        """The ops in the blocks. An op that several kinds of block have is listed once."""
        return tuple({op.name: op for kind in self.blocks for op in self.ops[kind]}.values())

    @cached_property
    def block_output(self) -> str:
        """Name of the tensor that every block reads and writes: the residual stream."""
        return passed_on(self.ops[self.blocks[0]])

    @property
    def kinds(self) -> tuple[Section, ...]:
        """The kind of block of each layer, in order."""
        if not self.runs:
            return ("block",) * self.layers
        return tuple(run.section for run in self.runs for _ in range(run.layers))

    def layers_of(self, section: Section, begin: int = 0, end: int | None = None) -> int:
        """Return the number of blocks of kind `section` among layers `begin` to `end` (exclusive)."""
        end = self.layers if end is None else end
        if not self.runs:
            return max(0, end - begin) if section == "block" else 0
        total, start = 0, 0
        for run in self.runs:
            if run.section == section:
                total += max(0, min(end, start + run.layers) - max(begin, start))
            start += run.layers
        return total

    def shape(self, param: Param) -> tuple[int, ...]:
        """Return the shape of one layer's tensor of `param`, unsharded, in storage order."""
        return tuple(prod(self.sizes[d] for d in group) for group in param.shape_dims)

    def elements(self, param: Param) -> int:
        """Return the number of elements of one layer's tensor of `param`."""
        return prod(self.shape(param))

    def copies(self, param: Param) -> int:
        """Return the number of layers that have `param`; 1 if the first or last section has it."""
        inside = all(s in self.blocks for s in param.sections)
        return sum(self.layers_of(s) for s in param.sections) if inside else 1

    @property
    def trained_parameters(self) -> int:
        """Number of trained parameters; a tied parameter counts once."""
        return sum(self.elements(p) * self.copies(p) for p in self.params if not p.frozen)

    @cached_property
    def has_frozen(self) -> bool:
        """True if some parameters are not trained."""
        return any(p.frozen for p in self.params)

    @property
    def parameters(self) -> int:
        """Number of all parameters; a tied parameter counts once."""
        return sum(self.elements(p) * self.copies(p) for p in self.params)

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token uses; of the experts, those of `top_k`."""
        return sum(round(self.elements(p) * self.share(p)) * self.copies(p) for p in self.params)

    def share(self, param: Param) -> float:
        """Return the fraction of `param` that one token uses: top_k / experts for the experts' parameters, else 1."""
        return self.top_k / self.sizes["experts"] if param.region == EXPERTS else 1.0
