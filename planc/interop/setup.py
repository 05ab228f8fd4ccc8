"""A training configuration independent of any system: the intermediate form between plans and other systems' files."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.frameworks import OWN
from planc.ir.model import Model
from planc.ir.plan import Noun, Period, Precision, Recompute, Route

Role = Literal["pp", "replica", "shard", "cp", "tp"]
ROLES: tuple[Role, ...] = ("pp", "replica", "shard", "cp", "tp")
"""Roles of a mesh axis, outermost first as in Megatron and torchtitan: pipeline stages; data-parallel ranks that
replicate state; data-parallel ranks that shard state by `zero`; context parallelism; tensor parallelism."""


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The sizes and features of a decoder model.

    A size of 0 means that the model has no such part; but `kv_heads` 0 means as many as `heads`, and `head_dim` 0 means
    embed / heads. `positions` is the number of learned positions, `dense_layers` that of leading layers without
    experts, `mtp_layers` that of MTP modules after the layers.
    """

    layers: int
    embed: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int
    vocab: int
    positions: int = 0
    gated: bool = True
    """SwiGLU or GeGLU: two up-projections and one down-projection."""
    rms_norm: bool = True
    rotary: bool = True
    biased: bool = False
    """Biases in linear layers."""
    query_norm: bool = False
    """Per-head norms of queries and keys."""
    query_bias: bool = False
    """Biases in the projections to queries, keys and values, and in no other."""
    tied: bool = False
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    mtp_layers: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """Matmuls in low precision. `which` are the names of their ops; `method` is their format in a plan, such as
    `float8(rowwise)`."""

    which: tuple[str, ...]
    method: str
    wide_layers: tuple[tuple[int, int], ...] = ()
    """Ranges (first, one past the last) of layers that stay in the compute dtype."""


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A training configuration in which each field has a value, from a file or a default.

    Degrees of parallelism are numbers of ranks, 1 for none. `model` and `cluster` are the words after `model` and
    `cluster` in a plan. `shape` has the model's sizes if the file gives sizes and not a name.
    """

    name: str
    model: str = ""
    shape: DecoderShape | None = None
    graph: Model | None = field(default=None, compare=False)
    """The model's op graph, if known: for the names of ops."""
    cluster: str = ""
    devices: int
    sequences: int
    """Sequences per optimizer step, over all ranks."""
    sequence_tokens: int
    microbatch: int
    """Sequences per microbatch of a data-parallel rank."""
    pp: int = 1
    replica: int = 1
    shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1
    """Expert tensor parallelism: ranks that shard the hidden dim of one expert."""
    order: tuple[Role, ...] = ROLES
    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage of the `shard` ranks: 1 shards optimizer state, 2 also gradients, 3 also parameters."""
    zero_over_cp: bool = False
    """True if state is also sharded over context-parallel ranks."""
    whole_grads: bool = False
    """True if gradients stay unsharded until they are reduced once a step, although `zero` shards parameters."""
    gather: Period | None = None
    """How long gathered parameters live; None: planc's default."""
    sp: bool = False
    """Sequence parallelism of the residual stream, over `tp`."""
    heads_over_tp: bool = True
    """False if tensor parallelism replicates attention."""
    vocab_over_tp: bool = True
    cp_method: Literal["ring", "all_gather", "ulysses"] = "ring"
    cp_balance: Literal["headtail", "none"] = "headtail"
    experts_over: tuple[Role, ...] = ("shard", "cp", "tp")
    """The mesh axes that the experts' own axes factorise."""
    schedule: str = "1f1b"
    chunks: int = 1
    """Virtual stages per pipeline rank."""
    stages: tuple[int, ...] = ()
    """Layers of each virtual stage; () for an even split."""
    route: Route = Route()
    optimizer: Literal["adamw", "muon"] = "adamw"
    precision: Precision = Precision()
    stored: tuple[tuple[Noun, str], ...] = ()
    """State that is stored in another dtype than fp32."""
    recompute: Recompute = Recompute()
    kernel: str = ""
    """Kernel of attention; empty for planc's default."""
    quantized: tuple[Quantized, ...] = ()
    offloaded: tuple[str, ...] = ()
    """State (`params`, `optimizer`) or activations that are stored on the host."""
    overlaps: tuple[tuple[Role | Literal["ep"], str], ...] = ()
    """How transfers of an axis overlap with compute, if not planc's default."""
    compiled: tuple[str, ...] = ()
    """Parts compiled as one region each: `blocks`, `loss`."""
    loss_chunks: int = 1
    """Parts of a microbatch's tokens whose head and loss run one after another."""
    framework: str = OWN
    """The framework whose rules decide what the sentences leave open, one of `planc.frameworks.NAMES`."""

    @property
    def data_parallel(self) -> int:
        """Returns the number of data-parallel ranks, `replica` x `shard`."""
        return self.replica * self.shard

    def degree(self, role: Role) -> int:
        """Returns the number of ranks on the axis of `role`."""
        degrees: dict[Role, int] = {
            "pp": self.pp,
            "replica": self.replica,
            "shard": self.shard,
            "cp": self.cp,
            "tp": self.tp,
        }
        return degrees[role]


class CannotSayError(ValueError):
    """A plan cannot be converted to a TrainingSetup, or a system lacks a field for the sentence with the verb
    `verb`."""

    def __init__(self, message: str, verb: str) -> None:
        super().__init__(message)
        self.verb = verb
