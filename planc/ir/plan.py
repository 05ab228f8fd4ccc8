"""The plan: what the sentences say, resolved to values. One sentence, one node, one cause."""

from __future__ import annotations

import hashlib
import json
from dataclasses import field, fields, replace
from functools import cached_property
from math import ceil
from typing import Any, Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause, Value
from planc.ir.cache import Cache, cached_on
from planc.ir.field_types import (
    Code,
    Count,
    Currency,
    CurrencyOrEmpty,
    Digest,
    FileName,
    Glob,
    Line,
    Method,
    MethodOrEmpty,
    Name,
    NameOrEmpty,
    NotNegative,
    Positive,
    Quantity,
    ScheduleRow,
)
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh, View
from planc.ir.model import EXPERTS, ROUTED, SLOTS, Model

Dtype = Literal["fp32", "bf16"]
Noun = Literal["params", "grads", "optimizer"]
Period = Literal["pass", "microbatch", "step"]
FORMAT = "planc.plan/1"
NOUNS: tuple[Noun, ...] = ("params", "grads", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Batch(Value):
    """`batch SEQUENCES x TOKENS tokens microbatch N`: N sequences per data-parallel rank at a time."""

    sequences: Positive
    sequence_tokens: Positive
    microbatch_sequences: Positive
    cause: Cause

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequences * self.sequence_tokens


@dataclass(frozen=True, kw_only=True)
class Shard(Value):
    """`shard DIM over AXES [in REGION]`: every tensor dim of that name is divided."""

    dim: Name
    axes: tuple[Name, ...]
    region: NameOrEmpty = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Replicate(Value):
    """`replicate DIM over AXES [in REGION]`: what another sentence divides stays whole over these axes."""

    dim: Name
    axes: tuple[Name, ...]
    region: NameOrEmpty = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Store(Value):
    """`store NOUN [as DTYPE] [over AXES [on DIM]] [for REGION]`: how state is kept between uses."""

    noun: Noun
    dtype: NameOrEmpty = ""
    axes: tuple[Name, ...] = ()
    dim: NameOrEmpty = ""
    region: NameOrEmpty = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Gather(Value):
    """`gather params per PERIOD [bucket N layers] [prefetch N layers]`: how long gathered params live, how many layers
    one transfer gathers, and how many are gathered ahead of the one in use."""

    per: Period
    bucket: Positive = 1
    """Layers whose parameters are gathered, and whose gradients are reduced, together."""
    prefetch: Count = 0
    """Layers gathered ahead; 0 where the framework decides."""
    cause: Cause


_BACKWARD_IN_TWO_PARTS = ("dualpipe", "interleaved_zero_bubble", "zbv")
"""How the names of such schedules begin, those in lockstep too."""


@dataclass(frozen=True, kw_only=True)
class Split(Value):
    """`split layers over AXIS as SCHEDULE(chunks = N) [stages [...]]`: the pipeline.

    `stages` gives, for each virtual stage in order, (first layer, one past the last); the first
    also holds the `first` section, the last one the `last` section.
    """

    axis: Name
    schedule: Method
    chunks: Positive
    stages: tuple[tuple[Count, Count], ...]
    order: tuple[ScheduleRow, ...] = ()
    """Each rank's actions, for a schedule of one's own; the bundled ones follow from their numbers."""
    cause: Cause

    @property
    def splits_backward(self) -> bool:
        """True if gradients of weights may come later than those of inputs (zero bubble), as actions of their own; a
        weight's is found while it is whole."""
        return any("W" in row for row in self.order) or self.schedule.startswith(_BACKWARD_IN_TWO_PARTS)


@dataclass(frozen=True, kw_only=True)
class Optimizer(Value):
    """`optimizer NAME(...)`. Hyper-parameters belong to the preset; a plan fixes the kind of state."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon`: for the matrices of the blocks, with AdamW for the rest; see `planc.ir.updates`."""
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class Freeze(Value):
    """`freeze PART, ... [except PART, ...]`: parameters that are not trained. The model's parameters say which."""

    parts: tuple[Name, ...]
    """Ops by name, `blocks`, `norms` or `model`."""
    kept: tuple[Name, ...] = ()
    """Parts that are trained all the same."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Lora(Value):
    """`lora rank R [alpha A] on PART, ...`: low-rank updates of matrices whose own weights are frozen.

    The model's ops and parameters have the updates: `alpha / rank` times B A beside the weight.
    """

    rank: Positive
    alpha: Positive
    ops: tuple[Name, ...]
    """The matmuls that have an update, by name."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Precision(Value):
    """`compute DTYPE reduce DTYPE`: matmuls and activations, and the reduction of gradients."""

    compute: Dtype = "fp32"
    reduce: Dtype = "fp32"
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class Recompute(Value):
    """`recompute blocks`, `recompute whole_blocks` or `recompute OP, ... [except OP, ...] [every N layers]`: what
    the backward runs again instead of keeping."""

    ops: tuple[Name, ...] = ()
    """Op names; ("blocks",) or ("whole_blocks",) for all ops; () for none."""
    kept: tuple[Name, ...] = ()
    """Ops whose outputs are saved all the same."""
    every: Positive = 1
    """Only every so many layers is run again; the others keep everything."""
    cause: Cause | None = None

    @property
    def blocks(self) -> bool:
        return self.ops in (("blocks",), ("whole_blocks",))

    @property
    def whole(self) -> bool:
        """True when recomputation runs each block to its end, past what the backward needs."""
        return self.ops == ("whole_blocks",)


Copies = Literal["choice", "device", "node"]
"""Places that each get one copy of a token on its way to experts."""


@dataclass(frozen=True, kw_only=True)
class Route(Value):
    """`route experts as METHOD`: `dropless` serves every token; `capacity(factor = F)` gives each expert
    room for F times its even share, used or not. `node_limit` bounds the nodes one token is sent to. `copies` says what
    a copy of a token is sent for: each expert that it chose, each device or each node that holds some."""

    method: Literal["dropless", "capacity"] = "dropless"
    factor: NotNegative = 1.0
    node_limit: Count = 0
    copies: Copies = "choice"
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class NamedKernel(Value):
    """`attention.core as KERNEL` beside a sentence that says how keys of other ranks are met."""

    method: Method
    cause: Cause


PASSES_KEYS = ("ring", "all_gather")
"""Methods by which attention meets the keys of other ranks; other methods are kernels."""


@dataclass(frozen=True, kw_only=True)
class Kernel(Value):
    """`attention.core as METHOD`: the kernel of attention, or how it meets keys of other ranks.

    `ring` passes keys and values on, `all_gather` gathers them; `balance` says which rows of the
    sequence a rank holds (`headtail`: one piece from each end, so that causal work is even; `none`).
    """

    method: Method
    balance: Literal["headtail", "none"] = "headtail"
    rotate: Literal["p2p", "alltoall"] = "p2p"
    block: Count = 0
    kernel: NamedKernel | None = None
    """The kernel that a ring or a gather runs, where a second sentence names it."""
    cause: Cause

    @property
    def runs(self) -> str:
        """The kernel by name; an empty string where no sentence names one."""
        if self.method not in PASSES_KEYS:
            return self.method
        return self.kernel.method if self.kernel else ""

    @property
    def from_both_ends(self) -> bool:
        """True if a rank holds one piece from each end of a sequence, rather than one stretch of it."""
        return self.method in PASSES_KEYS and self.balance == "headtail"


@dataclass(frozen=True, kw_only=True)
class Quantize(Value):
    """`quantize OP, ... as float8(RECIPE) [except ...]`: matmuls in a narrower dtype."""

    ops: tuple[Name, ...]
    dtype: Name
    recipe: NameOrEmpty = ""
    tile: Count = 0
    """Rows and columns that share a scale; 0 for the recipe's own."""
    kept: tuple[Name, ...] = ()
    kept_layers: tuple[tuple[Count, Count], ...] = ()
    """Ranges (first, one past the last) of layers that stay in the compute dtype."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Offload(Value):
    """`offload WHAT, ... to host`: state nouns or saved tensors kept in host memory."""

    what: tuple[Name, ...]
    to: Literal["host"] = "host"
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Overlap(Value):
    """`overlap AXIS as METHOD`: hide the transfers of an axis behind compute."""

    axis: Name
    method: Method
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Compile(Value):
    """`compile blocks, loss as inductor`: what the target compiles as one region: each block, or the loss."""

    what: Name
    method: MethodOrEmpty = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class RealisedAs(Value):
    """`realise as FRAMEWORK`: whose rules decide what the plan leaves open (`planc.frameworks`)."""

    framework: Name
    whole_blocks: bool = False
    """True where the framework runs a recomputed block to its end and the plan's own sentence does not."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Override(Value):
    """`override GLOB = replicated | DIM over AXES and ...`: parameters the rules do not fit."""

    glob: Glob
    layout: dict[Name, tuple[Name, ...]]
    """Empty for `replicated`."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Train(Value):
    """`train for TOKENS tokens`: the length of the whole run."""

    tokens: Positive
    cause: Cause


Priced = Literal["device", "chip", "node"]
"""A thing that is paid by the hour. A node of a torus is one slice."""


@dataclass(frozen=True, kw_only=True)
class Price(Value):
    """`price AMOUNT per THING hour`: the price of an hour of one device, chip or node."""

    per_hour: NotNegative
    """Amount of the currency for each hour of one `per`."""
    currency: Currency
    per: Priced
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Expect(Value):
    """`expect METRIC CMP VALUE`, in SI units (bytes, seconds, fractions), days, hours or an amount of a currency."""

    metric: Name
    cmp: Literal["<=", ">=", "<", ">"]
    value: Quantity
    text: Line
    currency: CurrencyOrEmpty = ""
    """Currency of an expected price; empty for other metrics."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class ExpectNo(Value):
    """`expect no CODE`: the diagnostic must be absent."""

    code: Code
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Plan(Value):
    """A whole plan. `set` holds the values given with `--set`; `sources` the sha256 of each file read.

    >>> import planc
    >>> tiny = planc.load("plans/tiny.plan")
    >>> tiny.mesh.devices, tiny.microbatches, tiny.model.parameters
    (4, 1, 3033344)
    """

    name: Name
    model: Model
    batch: Batch
    cluster: Cluster
    mesh: Mesh
    shards: tuple[Shard, ...] = ()
    replicates: tuple[Replicate, ...] = ()
    stores: tuple[Store, ...] = ()
    gather: Gather | None = None
    split: Split | None = None
    optimizer: Optimizer = Optimizer()
    freeze: Freeze | None = None
    lora: Lora | None = None
    precision: Precision
    recompute: Recompute = Recompute()
    route: Route = Route()
    attention: Kernel | None = None
    quantize: tuple[Quantize, ...] = ()
    offloads: tuple[Offload, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    compiles: tuple[Compile, ...] = ()
    realise: RealisedAs | None = None
    overrides: tuple[Override, ...] = ()
    train: Train | None = None
    price: Price | None = None
    """The plan's own price, else that of the hardware file."""
    expects: tuple[Expect, ...] = ()
    expects_no: tuple[ExpectNo, ...] = ()
    file: FileName
    sources: dict[FileName, Digest] = field(default_factory=dict)
    set: dict[Name, Count] = field(default_factory=dict)

    # What several rooms ask of a plan.

    @cached_on(lambda plan, dim, region="": (plan.cache, (dim, region)))
    def axes_of(self, dim: str, region: str = "") -> tuple[str, ...]:
        """The axes that divide `dim` in `region`, outermost first.

        Scoped rules add to unscoped ones, and win where both want an axis. In the regions of a view only
        its axes exist, beside the mesh axes that it leaves alone.
        """
        return self._slots(region) if dim == SLOTS else self._divided(dim, region)

    def resized(self, mesh: Mesh, batch: Batch, split: Split | None) -> Plan:
        """The plan with another `mesh`, `batch` and pipeline `split` (None: no pipeline), and all other sentences as
        they are."""
        return Plan(**{**self._field_values, "mesh": mesh, "batch": batch, "split": split})

    @cached_property
    def _field_values(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def share(self, other: Plan) -> None:
        """Use the results of `axes_of` that `other` has, and fill them together from now on.

        `other` must have the same sentences, and the same axes must be of size 1.
        """
        self.cache.share(other.cache, Plan.axes_of)

    @cached_property
    def cache(self) -> Cache:
        """Results that depend on the plan, but not on its machine."""
        return Cache()

    def _divided(self, dim: str, region: str) -> tuple[str, ...]:
        return self.mesh.in_order(self.sharding_axes(dim, region))

    def sharding_axes(self, dim: str, region: str = "") -> tuple[str, ...]:
        """The axes that divide `dim` in `region`, those of one rank too, in no order that means something."""
        if region == ROUTED or (dim == "experts" and region not in ("", EXPERTS)):
            return ()  # the scores of all experts, and tokens on their way, stay with the token
        inner = [s for s in self.shards if region and s.region == region]
        outer = [s for s in self.shards if not s.region]
        taken = {a for s in inner if s.dim != dim for a in s.axes}
        axes = {a for s in inner if s.dim == dim for a in s.axes}
        axes |= {a for s in outer if s.dim == dim for a in s.axes if a not in taken}
        axes -= {a for r in self.replicates if r.dim == dim and r.region in ("", region) for a in r.axes}
        return tuple(a for a in axes if self.exists(a, region))

    def _slots(self, region: str) -> tuple[str, ...]:
        """Tokens keep the axes of batch and sequence on their way to the experts, in the view's terms; at
        the experts, without those that divide the experts themselves."""
        tokens = {*self.axes_of("batch", "residual"), *self.axes_of("sequence", "residual")}
        view = self.view_of(EXPERTS)
        if view is not None:
            tokens = {a for a in tokens if a not in view.of} | set(view.names)
        if region == EXPERTS:
            dims = {d for p in self.model.params if p.region == EXPERTS for d in p.dims}
            tokens -= {a for d in dims for a in self.axes_of(d, EXPERTS)}
        return self.mesh.in_order(tokens)

    def view_of(self, region: str) -> View | None:
        """The view whose axes stand in for the mesh's in `region`; None where the mesh's own axes hold."""
        return self.mesh.view_of(EXPERTS if region == ROUTED else region)

    def exists(self, axis: str, region: str) -> bool:
        """True if `axis` exists in `region`, where routed tokens have the experts' axes."""
        return self.mesh.exists(axis, EXPERTS if region == ROUTED else region)

    @cached_property
    def data_axes(self) -> tuple[str, ...]:
        """The axes that divide the batch: the data-parallel ranks."""
        return self.axes_of("batch")

    @cached_property
    def data_parallel(self) -> int:
        return self.mesh.size(*self.data_axes)

    @cached_property
    def microbatches(self) -> int:
        """Microbatches of one step, per data-parallel rank."""
        return self.batch.sequences // (self.data_parallel * self.batch.microbatch_sequences)

    def store(self, noun: Noun, region: str = "") -> tuple[str, ...]:
        """The axes `noun` is stored over, outermost first; () for a whole copy on every rank.

        A sentence `for` the region wins over those for everything.
        """
        axes = {a for s in self._stores(noun, region) for a in s.axes}
        return self.mesh.in_order(a for a in axes if self.exists(a, region))

    def store_dtype(self, noun: Noun, region: str = "") -> str:
        """The dtype in which `noun` (params, grads or optimizer) is stored: fp32 unless a sentence says otherwise.

        A sentence for `region` wins over one for the whole model; "" asks for the whole model.
        """
        scoped = next((s.dtype for s in self._stores(noun, region) if s.dtype), "")
        return scoped or next((s.dtype for s in self.stores if s.noun == noun and s.dtype and not s.region), "fp32")

    @cached_on(lambda plan, noun, region: (plan.cache, (noun, region)))
    def _stores(self, noun: Noun, region: str) -> list[Store]:
        scoped = [s for s in self.stores if region and s.noun == noun and s.region == region]
        return scoped or [s for s in self.stores if s.noun == noun and not s.region]

    def gather_per_in(self, region: str) -> Period:
        """How long gathered parameters of `region` live, "" the whole model: `step` where they are not stored divided;
        else as said, `pass` where nothing is unless a schedule needs them to stay."""
        if not self.store("params", region):
            return "step"
        if self.gather is not None:
            return self.gather.per
        stay = not self.store("params") or self.splits_backward
        return "step" if stay else "pass"

    def gathers_each_pass(self, region: str = "") -> bool:
        """True if stored parameters of `region`, "" the whole model, are gathered where they are used, in each pass."""
        return self.gather_per_in(region) == "pass"

    @cached_property
    def gather_per(self) -> Period:
        """How long gathered parameters live, of those that are stored divided."""
        regions = ("", *dict.fromkeys(s.region for s in self.stores if s.region))
        return next((per for region in regions if (per := self.gather_per_in(region)) != "step"), "step")

    @property
    def bucket_layers(self) -> int:
        """Layers whose parameters are gathered together."""
        return self.gather.bucket if self.gather else 1

    def buckets_ahead(self, usual: int) -> int:
        """Gathered groups of layers that wait beside the one in use; `usual` where no sentence says how many layers."""
        said = self.gather.prefetch if self.gather else 0
        return ceil(said / self.bucket_layers) if said else usual

    @cached_property
    def offloaded(self) -> frozenset[str]:
        """Names of the state (`params`, `optimizer`) and of the saved tensors that are kept in host memory."""
        return frozenset(name for o in self.offloads for name in o.what)

    @property
    def state_on_host(self) -> bool:
        """True if parameters or optimizer state are kept in host memory, and not saved tensors alone."""
        return not self.offloaded.isdisjoint(("params", "optimizer"))

    @cached_property
    def pipeline(self) -> int:
        """Ranks along the pipeline; 1 without one."""
        return self.mesh.size(self.split.axis) if self.split else 1

    @property
    def pipelined(self) -> Split | None:
        """The `split` over several ranks; one rank is no pipeline."""
        return self.split if self.pipeline > 1 else None

    @cached_property
    def splits_backward(self) -> bool:
        """True if a pipeline's schedule splits its backward into inputs and weights."""
        return self.split is not None and self.split.splits_backward

    @property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """Layer ranges of the virtual stages; one stage without a pipeline."""
        return self.split.stages if self.split else ((0, self.model.layers),)

    @property
    def framework(self) -> str:
        """The framework whose rules the plan is realised by; `planc` unless a sentence says another."""
        return self.realise.framework if self.realise else "planc"

    @property
    def for_planc(self) -> Plan:
        """The plan as planc's own programs run it: with all its sentences, without its framework's rules.

        The vocabulary stays padded: its rows are the model's from then on, and may divide only so.
        """
        realise, kernel = self.realise, self.attention
        if realise is None:
            return self
        return replace(
            self,
            attention=None if kernel is not None and kernel.cause == realise.cause else kernel,
            stores=tuple(s for s in self.stores if s.cause != realise.cause),
            overlaps=tuple(o for o in self.overlaps if o.cause != realise.cause),
            recompute=replace(self.recompute, ops=("blocks",)) if realise.whole_blocks else self.recompute,
            realise=None,
        )

    def compiled(self, what: str) -> Compile | None:
        """The sentence by which `what`, `blocks` or `loss`, is compiled as one region; None without one."""
        return next((c for c in self.compiles if c.what == what), None)

    def cause_of_shard(self, dim: str, axis: str, region: str = "") -> Cause | None:
        """The sentence that lays `axis` on `dim` there."""
        for s in self.shards:
            if s.dim == dim and axis in s.axes and s.region in ("", region):
                return s.cause
        return None

    def cause_of_store(self, noun: Noun, region: str = "") -> Cause | None:
        """The sentence that stores `noun` over some axes in `region` ("": everywhere); None when every rank has a whole
        copy."""
        return next((s.cause for s in self._stores(noun, region) if s.axes), None)

    # The compiled form.

    def to_json(self) -> dict[str, Any]:
        """`planc.plan/1`: canonical; equal plans give equal bytes with `canonical`.

        Keys of sentences that planc once did not have are left out of a plan that does not say them: `realise`,
        `train`, `price`, the currency of an expectation, the layers of a bucket and ahead of it, and the kernel of a
        ring.
        """
        plain = super().to_json()
        for name in ("realise", "train", "price"):
            if plain[name] is None:
                del plain[name]
        if self.attention is not None and self.attention.kernel is None:
            del plain["attention"]["kernel"]
        if self.gather is not None:
            usual = {"bucket": 1, "prefetch": 0}
            plain["gather"] = {k: v for k, v in plain["gather"].items() if v != usual.get(k)}
        for expect in plain["expects"]:
            if not expect["currency"]:
                del expect["currency"]
        return {"format": FORMAT, **plain}

    def canonical(self) -> str:
        """The compiled plan as one line of JSON with sorted keys."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @cached_property
    def sha256(self) -> str:
        """sha256 of the plan's meaning: without places and file names, and without what would hold unsaid."""
        meaning = _without_places(replace(self, **self._unsaid).to_json())
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    @property
    def _unsaid(self) -> dict[str, Any]:
        """Sentences that may say a default (`store ... as fp32`, `gather`, `realise as planc`), without one."""
        silent = Gather(per=replace(self, gather=None).gather_per, cause=self.mesh.cause)
        said = self.gather and replace(self.gather, cause=silent.cause)
        return {
            "stores": tuple(s for s in self.stores if s.axes or s.region or s.dtype != "fp32"),
            "gather": None if said == silent else self.gather,
            "realise": None if self.framework == "planc" else self.realise,
        }


_PLACES = {"cause", "span", "file", "sources", "text", "set"}


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_places(v) for k, v in value.items() if k not in _PLACES}
    if isinstance(value, list):
        return [_without_places(v) for v in value]
    return value
