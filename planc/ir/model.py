"""A model as a graph of ops over named dims, one block derived once and repeated.

`Model` is the family's answer: sizes, parameters and sections of ops: `first`, one section for each
kind of block (most families have one, `block`), and `last`. Nothing here knows a mesh or a plan.
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
from planc.ir.field_types import Count, Line, ModelName, ModulePath, Name, NameOrEmpty, NotNegative, Positive
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
"""`scan` is the convolution and the recurrence of a state-space layer. `route` picks experts for each token and lays
the tokens out by expert; `combine` is its inverse. `code` is a model's own that no other kind is, and runs whole."""
Section = Name
"""`first`, `last`, or a kind of block."""

ROUTED = "dispatch"
"""The region of tokens on their way to experts and back: divided as tokens are, in the experts' axes."""
EXPERTS = "experts"
"""The region of the experts."""
LORA_RANK = "lora_rank"
"""The dim between the two matrices of a low-rank update (LoRA)."""
LORA_A, LORA_B = ".lora_a", ".lora_b"
"""Ends of the names of these two: A [rank, in] and B [out, rank], added to a weight [out, in] as B A."""
SLOTS = "slots"
"""The dim of the places for tokens at one expert. Its axes follow from those of batch and sequence."""


@dataclass(frozen=True, kw_only=True)
class Param(Value):
    """A parameter. `shape_dims` groups named dims per tensor dimension, in storage order.

    A linear layer stores [out, in]: `wq` is ((heads, head_dim), (embed,)). `*` in the name stands
    for the layer's number.
    """

    name: ModulePath
    shape_dims: tuple[tuple[Name, ...], ...]
    section: Section
    also: tuple[Section, ...] = ()
    """Further sections with this parameter: other kinds of block that have one of this name and shape,
    or `last` when the output is tied to the embedding."""
    region: NameOrEmpty = ""
    """The region of the op that uses it, for rules such as `store ... for experts`."""
    init: Literal["normal", "ones", "zeros"] = "normal"
    decay: bool = True
    frozen: bool = False
    """Not trained: it has no gradient and no optimizer state."""

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(d for group in self.shape_dims for d in group)

    @property
    def sections(self) -> tuple[Section, ...]:
        """Every section that has this parameter."""
        return (self.section, *self.also)


@dataclass(frozen=True, kw_only=True)
class Tensor(Value):
    """An activation. `saved_as` is its dtype: the compute dtype, fp32, or integers without gradient."""

    name: Name
    dims: tuple[Name, ...]
    region: Name
    dtype: Literal["compute", "fp32", "int"] = "compute"


@dataclass(frozen=True, kw_only=True)
class Op(Value):
    """One operation: inputs and params to one output, over an index space of named dims.

    `whole` are dims that must not be divided while this op runs (the norm's embed, the softmax's
    head_dim); propagation gathers them. `saves` names what the backward needs: inputs, output, or
    small statistics.
    """

    name: Name
    kind: OpKind
    region: Name
    module: ModulePath
    """Path of the runtime's module that does this op; `*` stands for the layer's number."""
    inputs: tuple[Name, ...]
    params: tuple[ModulePath, ...] = ()
    output: Name
    whole: tuple[Name, ...] = ()
    saves: tuple[Name, ...] = ()
    whole_of: dict[Name, tuple[Name, ...]] = field(default_factory=dict)
    """Inputs that are needed whole over some dims although the op itself is divided there: attention
    computes its rows of the sequence, and each row needs all keys and values."""
    window: Count = 0
    """Attention: how many tokens back a row sees; 0 for all."""
    fixed: tuple[ModulePath, ...] = ()
    """Inputs and parameters that no gradient is made of, in a model with frozen ones: these, and inputs that nothing
    trained lies before. () where all are trained."""
    code_line: Line = ""
    """`FILE:LINE` of the source of `code`."""
    code_why: Line = ""
    """The reason that `code` is no other kind of op, in words."""
    multiply_adds: tuple[Elements, ...] = ()
    """Multiply-adds of `code` in one forward, by the dims that they grow with."""
    own_code: tuple[SavedByCode, ...] = ()
    """Memory of the module's own code, where the op was read from code, for sequences of more and more tokens; ():
    what the op needs to keep."""

    @property
    def has_backward(self) -> bool:
        """True if the backward goes through it: something before it, or of its own, is trained."""
        return not self.fixed or any(name not in self.fixed for name in (*self.inputs, *self.params))

    @property
    def weights(self) -> tuple[ModulePath, ...]:
        """Its parameters without those of a low-rank update."""
        return tuple(p for p in self.params if not p.endswith((LORA_A, LORA_B)))

    @property
    def update(self) -> tuple[ModulePath, ...]:
        """The parameters A and B of its low-rank update; () without one."""
        return tuple(p for p in self.params if p.endswith((LORA_A, LORA_B)))


def passed_on(ops: Sequence[Op]) -> Name:
    """Name of the tensor that a block of these `ops` hands to the next: the last one made that it takes itself from the
    one before; else that of its last op."""
    made: set[Name] = set()
    taken: set[Name] = set()
    for op in ops:
        taken |= {*op.inputs} - made
        made.add(op.output)
    return next((op.output for op in reversed(ops) if op.output in taken), ops[-1].output)


@dataclass(frozen=True, kw_only=True)
class Run(Value):
    """`layers` blocks of one kind, one after the other."""

    section: Section
    layers: Positive


@dataclass(frozen=True, kw_only=True)
class Routing(Value):
    """Expert selection: how a router scores, picks and weights the experts of a token.

    `scores` are softmax or sigmoid of the logits. The `top_k` best are picked, from the `groups_kept` best of
    `groups` equal groups of experts; `normed` weights sum to one before they are scaled by `scale`.
    DeepSeek-AI 2024, "DeepSeek-V2" (section 2.2) and "DeepSeek-V3 Technical Report" (section 2.1).
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    normed: bool = True
    scale: NotNegative = 1.0
    groups: Positive = 1
    groups_kept: Positive = 1


@dataclass(frozen=True, kw_only=True)
class Model(Value):
    """A model family applied to sizes. `sizes` maps dim to length; `layers` is the block count.

    `runs` says which kinds of block follow each other; () when there is one kind, `block`.
    """

    name: ModelName
    family: Name
    sizes: dict[Name, Positive]
    rope_theta: NotNegative = 10000.0
    rope_scaling: dict[Name, bool | Count | NotNegative | Line] = field(default_factory=dict)
    """Scaling of rotary positions for longer contexts, in the config's own keys; changes no shape."""
    norm_eps: NotNegative = 1e-5
    tied: bool = False
    top_k: Count = 0
    """Experts a token is sent to; 0 without experts."""
    routing: Routing = Routing()
    runs: tuple[Run, ...] = ()
    params: tuple[Param, ...]
    tensors: tuple[Tensor, ...]
    ops: dict[Section, tuple[Op, ...]]
    unseen: tuple[Unseen, ...] = ()
    """Lengths of a sequence for which the ops of a model read from code do not say what the code keeps."""
    cause: Cause | None = None
    """The sentence that names it; None outside a plan."""

    @cached_property
    def cache(self) -> Cache:
        """Results that depend on the model alone."""
        return Cache()

    @cached_property
    def tensor(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def param(self) -> dict[str, Param]:
        return {p.name: p for p in self.params}

    @property
    def layers(self) -> int:
        """Blocks that are divided over a pipeline: the layers, and the modules for further tokens behind them."""
        return self.sizes["layers"] + self.sizes.get("mtp_layers", 0)

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """The regions a `shard ... in REGION` may name."""
        seen = [op.region for ops in self.ops.values() for op in ops] + [t.region for t in self.tensors]
        return tuple(dict.fromkeys(seen))

    def op_names(self) -> tuple[str, ...]:
        """Names of all ops, each once, in the order in which the sections list them."""
        return tuple(dict.fromkeys(op.name for ops in self.ops.values() for op in ops))

    @cached_property
    def blocks(self) -> tuple[Section, ...]:
        """The kinds of block, in order of first appearance."""
        return tuple(dict.fromkeys(run.section for run in self.runs)) or ("block",)

    @property
    def block_ops(self) -> tuple[Op, ...]:
        """The ops of every kind of block, each name once."""
        return tuple({op.name: op for kind in self.blocks for op in self.ops[kind]}.values())

    @cached_property
    def block_output(self) -> str:
        """Name of the tensor that every block takes and gives: the residual stream between layers."""
        return passed_on(self.ops[self.blocks[0]])

    @property
    def kinds(self) -> tuple[Section, ...]:
        """Each layer's kind of block."""
        if not self.runs:
            return ("block",) * self.layers
        return tuple(run.section for run in self.runs for _ in range(run.layers))

    def layers_of(self, section: Section, begin: int = 0, end: int | None = None) -> int:
        """Number of blocks of this kind among layers `begin` to `end` (exclusive)."""
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
        """Global shape of `param` in storage order: elements along each dimension of one layer's tensor."""
        return tuple(prod(self.sizes[d] for d in group) for group in param.shape_dims)

    def elements(self, param: Param) -> int:
        """Number of elements in one copy (one layer) of `param`."""
        return prod(self.shape(param))

    def copies(self, param: Param) -> int:
        """Number of copies of `param` in the model: one for each layer that has it; one that an end of the model has
        too counts once."""
        inside = all(s in self.blocks for s in param.sections)
        return sum(self.layers_of(s) for s in param.sections) if inside else 1

    @property
    def trained_parameters(self) -> int:
        """The parameters that are not frozen; tied ones once."""
        return sum(self.elements(p) * self.copies(p) for p in self.params if not p.frozen)

    @cached_property
    def has_frozen(self) -> bool:
        """True if some parameters are not trained."""
        return any(p.frozen for p in self.params)

    @property
    def parameters(self) -> int:
        """All parameters of the model; tied ones once."""
        return sum(self.elements(p) * self.copies(p) for p in self.params)

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses: `top_k` of the experts."""
        return sum(round(self.elements(p) * self.share(p)) * self.copies(p) for p in self.params)

    def share(self, param: Param) -> float:
        """The fraction of `param` that one token uses: `top_k` of `experts` for an expert's parameter, else 1."""
        return self.top_k / self.sizes["experts"] if param.region == EXPERTS else 1.0
