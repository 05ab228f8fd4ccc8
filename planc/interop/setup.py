"""A training configuration in no system's words: the middle between plans and other systems' files."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.frameworks import OWN
from planc.ir.model import Model
from planc.ir.plan import Noun, Period, Precision, Recompute, Route

Role = Literal["pp", "replica", "shard", "cp", "tp"]
ROLES: tuple[Role, ...] = ("pp", "replica", "shard", "cp", "tp")
"""The uses of a mesh axis, outermost first as Megatron and torchtitan place them: pipeline stages; data-parallel ranks
that keep whole state; data-parallel ranks that divide state as `zero` says; context parallelism; tensor parallelism."""


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The sizes of a decoder, and what tells its family from others.

    Sizes are whole numbers, 0 where the model has no such thing: `kv_heads` 0 are as many as `heads`, `head_dim` 0 is
    embed / heads, `positions` are learned ones. `dense_layers` are the first layers, which have no experts,
    `mtp_layers` modules behind the layers that predict further tokens.
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
    """SwiGLU or GeGLU: two products in, one out."""
    rms_norm: bool = True
    rotary: bool = True
    biased: bool = False
    """Biases in linear layers."""
    query_norm: bool = False
    """Norms of queries and keys, head by head."""
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
    """Matmuls in a narrow dtype. `method` is what follows `as`, such as `float8(rowwise)`; `which` are op names."""

    which: tuple[str, ...]
    method: str
    wide_layers: tuple[tuple[int, int], ...] = ()
    """Ranges (first, one past the last) of layers that stay in the compute dtype."""


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A configuration that is complete: each field is a value, whether a file gave it or a default did.

    Degrees are numbers of ranks, 1 for none. `model` and `cluster` are what follows these verbs in a plan; `shape` is
    the model in sizes, where the file gives them rather than a name. Batch sizes are sequences.
    """

    name: str
    model: str = ""
    shape: DecoderShape | None = None
    graph: Model | None = field(default=None, compare=False)
    """The model's ops and parameters, where they are known: for the names of ops."""
    cluster: str = ""
    devices: int
    sequences: int
    """Sequences of one optimizer step, over all ranks."""
    sequence_tokens: int
    microbatch: int
    """Sequences that a data-parallel rank works on at a time."""
    pp: int = 1
    replica: int = 1
    shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1
    """Ranks that divide the hidden dim of one expert."""
    order: tuple[Role, ...] = ROLES
    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage of the `shard` ranks: they divide 1 the optimizer's state, 2 gradients too, 3 parameters too."""
    zero_over_cp: bool = False
    """True where state is divided over the ranks of context parallelism as well."""
    whole_grads: bool = False
    """True where gradients stay whole until they are reduced once a step, although `zero` divides parameters."""
    gather: Period | None = None
    """How long gathered parameters live; None: planc's default."""
    sp: bool = False
    """Sequence parallelism of the residual stream, over `tp`."""
    heads_over_tp: bool = True
    """False where tensor parallelism leaves attention whole on every rank."""
    vocab_over_tp: bool = True
    cp_method: Literal["ring", "all_gather", "ulysses"] = "ring"
    cp_balance: Literal["headtail", "none"] = "headtail"
    experts_over: tuple[Role, ...] = ("shard", "cp", "tp")
    """The mesh axes whose ranks the experts' own axes factorise anew."""
    schedule: str = "1f1b"
    chunks: int = 1
    """Virtual stages of a pipeline rank."""
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
    """State (`params`, `optimizer`) or tensors that are kept in the host's memory."""
    overlaps: tuple[tuple[Role | Literal["ep"], str], ...] = ()
    """How transfers of an axis hide behind compute, where it is not planc's default."""
    compiled: tuple[str, ...] = ()
    """Parts compiled as one region each: `blocks`, `loss`."""
    framework: str = OWN
    """The framework whose rules decide what the sentences leave open, one of `planc.frameworks.NAMES`."""

    @property
    def data_parallel(self) -> int:
        """Ranks that work on other sequences."""
        return self.replica * self.shard

    def degree(self, role: Role) -> int:
        """Ranks of the axis of `role`."""
        degrees: dict[Role, int] = {
            "pp": self.pp,
            "replica": self.replica,
            "shard": self.shard,
            "cp": self.cp,
            "tp": self.tp,
        }
        return degrees[role]


class CannotSayError(ValueError):
    """A plan cannot be said in degrees of parallelism, or a system has no field for it; `verb` is of the sentence that
    stands in the way."""

    def __init__(self, message: str, verb: str) -> None:
        super().__init__(message)
        self.verb = verb
