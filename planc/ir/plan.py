"""A plan as values: one for each sentence, with the sentence as its cause."""

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

Dtype = Literal["fp32", "bf16", "fp16"]
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
        """Number of tokens of one optimizer step."""
        return self.sequences * self.sequence_tokens


@dataclass(frozen=True, kw_only=True)
class Shard(Value):
    """`shard DIM over AXES [in REGION]`: shards every tensor dim of that name."""

    dim: Name
    axes: tuple[Name, ...]
    region: NameOrEmpty = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Replicate(Value):
    """`replicate DIM over AXES [in REGION]`: keeps a dim whole over these axes although another sentence shards it."""

    dim: Name
    axes: tuple[Name, ...]
    region: NameOrEmpty = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Store(Value):
    """`store NOUN [as DTYPE] [over AXES [on DIM]] [for REGION]`: how state is stored between uses."""

    noun: Noun
    dtype: NameOrEmpty = ""
    axes: tuple[Name, ...] = ()
    dim: NameOrEmpty = ""
    region: NameOrEmpty = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Gather(Value):
    """`gather params per PERIOD [bucket N layers] [prefetch N layers]`: how long gathered params live, how many layers
    one all-gather covers, and how many are prefetched."""

    per: Period
    bucket: Positive = 1
    """Layers whose parameters are gathered together, and whose gradients are reduced together."""
    prefetch: Count = 0
    """Layers gathered ahead of use; 0 leaves it to the framework."""
    cause: Cause


_BACKWARD_IN_TWO_PARTS = ("dualpipe", "interleaved_zero_bubble", "zbv")
"""Prefixes of the names of schedules with separate dgrad and wgrad actions, lockstep variants included."""


@dataclass(frozen=True, kw_only=True)
class Split(Value):
    """`split layers over AXIS as SCHEDULE(chunks = N) [stages [...]]`: the pipeline.

    `stages` has (first layer, one past the last) of each virtual stage, in order; the first also holds the `first`
    section, the last one the `last` section.
    """

    axis: Name
    schedule: Method
    chunks: Positive
    stages: tuple[tuple[Count, Count], ...]
    order: tuple[ScheduleRow, ...] = ()
    """Each rank's actions, for a custom schedule; () for a bundled one."""
    cause: Cause

    @property
    def splits_backward(self) -> bool:
        """True if the schedule runs weight gradients (wgrad) separately, after input gradients (zero bubble)."""
        return any("W" in row for row in self.order) or self.schedule.startswith(_BACKWARD_IN_TWO_PARTS)


@dataclass(frozen=True, kw_only=True)
class Optimizer(Value):
    """`optimizer NAME(...)`. Hyper-parameters belong to the preset; a plan only fixes the kind of state."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon`: for the matrices of the blocks, with AdamW for the rest; see `planc.ir.updates`."""
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class Freeze(Value):
    """`freeze PART, ... [except PART, ...]`: parameters that are not trained. `Param.frozen` is set accordingly."""

    parts: tuple[Name, ...]
    """Ops by name, `blocks`, `norms` or `model`."""
    kept: tuple[Name, ...] = ()
    """Parts that are trained despite `parts`."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Lora(Value):
    """`lora rank R [alpha A] on PART, ...`: low-rank updates of matrices whose own weights are frozen.

    The model's ops and parameters include the updates: `alpha / rank` times B A is added to the weight.
    """

    rank: Positive
    alpha: Positive
    ops: tuple[Name, ...]
    """Names of the matmuls with an update."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Precision(Value):
    """`compute DTYPE reduce DTYPE`: matmuls and activations, and the reduction of gradients."""

    compute: Dtype = "fp32"
    """Dtype of activations, and of the parameters that matmuls read."""
    reduce: Dtype = "fp32"
    products: Literal["", "tf32"] = ""
    """`tf32` if matmuls round fp32 tensors to it; "": they run in `compute`."""
    cause: Cause | None = None

    @property
    def multiplied(self) -> str:
        """Dtype in which matmuls run.

        >>> Precision(products="tf32").multiplied, Precision(compute="fp16").multiplied
        ('tf32', 'fp16')
        """
        return self.products or self.compute


@dataclass(frozen=True, kw_only=True)
class Recompute(Value):
    """`recompute blocks`, `recompute whole_blocks` or `recompute OP, ... [except OP, ...] [every N layers]`: what the
    backward recomputes instead of saving."""

    ops: tuple[Name, ...] = ()
    """Op names; ("blocks",) or ("whole_blocks",) for all ops; () for none."""
    kept: tuple[Name, ...] = ()
    """Ops whose outputs are saved despite `ops`."""
    every: Positive = 1
    """Recompute one layer of every N; the others save everything."""
    cause: Cause | None = None

    @property
    def blocks(self) -> bool:
        return self.ops in (("blocks",), ("whole_blocks",))

    @property
    def whole(self) -> bool:
        """True if the backward recomputes each block to its end, beyond what it needs."""
        return self.ops == ("whole_blocks",)


Copies = Literal["choice", "device", "node"]
"""The unit to which one copy of a token is sent in expert routing."""


@dataclass(frozen=True, kw_only=True)
class Route(Value):
    """`route experts as METHOD`: `dropless` serves every token; `capacity(factor = F)` gives each expert slots for F
    times its even share. `node_limit` bounds the nodes that one token is sent to. `copies`: a token is sent once per
    chosen expert, per device or per node that holds some of them."""

    method: Literal["dropless", "capacity"] = "dropless"
    factor: NotNegative = 1.0
    node_limit: Count = 0
    copies: Copies = "choice"
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class NamedKernel(Value):
    """`attention.core as KERNEL` in addition to a sentence about the keys of other ranks."""

    method: Method
    cause: Cause


PASSES_KEYS = ("ring", "all_gather")
"""Methods by which attention gets the keys of other ranks; all other methods are kernels."""


@dataclass(frozen=True, kw_only=True)
class Kernel(Value):
    """`attention.core as METHOD`: the attention kernel, or how attention gets the keys of other ranks.

    `ring` passes keys and values around a ring, `all_gather` gathers them; `balance` sets the rows of the sequence that
    a rank holds (`headtail`: one piece from each end, which balances causal attention; `none`).
    """

    method: Method
    balance: Literal["headtail", "none"] = "headtail"
    rotate: Literal["p2p", "alltoall"] = "p2p"
    block: Count = 0
    kernel: NamedKernel | None = None
    """The kernel that a ring or a gather runs, if a second sentence names it."""
    cause: Cause

    @property
    def runs(self) -> str:
        """The name of the attention kernel; "" if no sentence names one."""
        if self.method not in PASSES_KEYS:
            return self.method
        return self.kernel.method if self.kernel else ""

    @property
    def from_both_ends(self) -> bool:
        """True if a rank holds one chunk from the start and one from the end of each sequence (`headtail`)."""
        return self.method in PASSES_KEYS and self.balance == "headtail"


@dataclass(frozen=True, kw_only=True)
class Quantize(Value):
    """`quantize OP, ... as float8(RECIPE) [except ...]`: matmuls in low precision."""

    ops: tuple[Name, ...]
    dtype: Name
    recipe: NameOrEmpty = ""
    tile: Count = 0
    """Rows and columns that share a scale; 0 for the recipe's default."""
    kept: tuple[Name, ...] = ()
    kept_layers: tuple[tuple[Count, Count], ...] = ()
    """Ranges (first, one past the last) of layers that stay in the compute dtype."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Offload(Value):
    """`offload WHAT, ... to host`: state nouns or saved tensors stored in host memory."""

    what: tuple[Name, ...]
    to: Literal["host"] = "host"
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Overlap(Value):
    """`overlap AXIS as METHOD`: overlap the transfers of an axis with compute."""

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
class ChunkedLoss(Value):
    """`loss in N chunks`: head and cross entropy of a microbatch run on one part of its tokens after another, so that
    only the logits of one part are in memory."""

    chunks: Count
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class RealisedAs(Value):
    """`realise as FRAMEWORK`: whose policy decides what the plan leaves open (`planc.frameworks`)."""

    framework: Name
    whole_blocks: bool = False
    """True if the framework recomputes blocks to their end although the plan's own sentence does not."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Override(Value):
    """`override GLOB = replicated | DIM over AXES and ...`: layouts of parameters that the general rules do not fit."""

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
"""The unit that is billed by the hour. A node of a torus is one slice."""


@dataclass(frozen=True, kw_only=True)
class Price(Value):
    """`price AMOUNT per THING hour`: the price of one device, chip or node per hour."""

    per_hour: NotNegative
    """Amount in `currency` per hour of one `per`."""
    currency: Currency
    per: Priced
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Expect(Value):
    """`expect METRIC CMP VALUE`, in SI units (bytes, seconds, fractions), days, hours or an amount of money."""

    metric: Name
    cmp: Literal["<=", ">=", "<", ">"]
    value: Quantity
    text: Line
    currency: CurrencyOrEmpty = ""
    """Currency of an expected price; "" for other metrics."""
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
    chunked_loss: ChunkedLoss | None = None
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
        """Return the axes that shard `dim` in `region` (a part of the model; "" is the whole model), outermost first.

        A sentence for the region adds to those for the whole model; it takes precedence if both use the same axis. In
        the experts, a view's axes replace the mesh axes that the view factorizes.
        """
        return self._slots(region) if dim == SLOTS else self._divided(dim, region)

    def resized(self, mesh: Mesh, batch: Batch, split: Split | None) -> Plan:
        """Return the plan with another `mesh`, `batch` and pipeline `split` (None: no pipeline), else the same."""
        return Plan(**{**self._field_values, "mesh": mesh, "batch": batch, "split": split})

    @cached_property
    def _field_values(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def share(self, other: Plan) -> None:
        """Use the same cached results of `axes_of` as the plan `other`.

        Both plans must have the same sentences, and size 1 for the same axes.
        """
        self.cache.share(other.cache, Plan.axes_of)

    @cached_property
    def cache(self) -> Cache:
        """Cache for results that depend on the plan, but not on its machine."""
        return Cache()

    def _divided(self, dim: str, region: str) -> tuple[str, ...]:
        return self.mesh.in_order(self.sharding_axes(dim, region))

    def sharding_axes(self, dim: str, region: str = "") -> tuple[str, ...]:
        """Return the axes that shard `dim` in `region`, also those of size 1, in no particular order."""
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
        """Return the axes that shard the token slots of the experts in `region`: on the way to the experts, those of
        batch and sequence (or of the view that replaces them); at the experts, without those that shard the experts'
        own dims."""
        tokens = {*self.axes_of("batch", "residual"), *self.axes_of("sequence", "residual")}
        view = self.view_of(EXPERTS)
        if view is not None:
            tokens = {a for a in tokens if a not in view.of} | set(view.names)
        if region == EXPERTS:
            dims = {d for p in self.model.params if p.region == EXPERTS for d in p.dims}
            tokens -= {a for d in dims for a in self.axes_of(d, EXPERTS)}
        return self.mesh.in_order(tokens)

    def view_of(self, region: str) -> View | None:
        """Return the view (other axes over the same ranks) whose axes replace mesh axes in `region`, or None."""
        return self.mesh.view_of(EXPERTS if region == ROUTED else region)

    def exists(self, axis: str, region: str) -> bool:
        """True if `axis` exists in `region`: a view replaces mesh axes at the experts, and on the way to them."""
        return self.mesh.exists(axis, EXPERTS if region == ROUTED else region)

    @cached_property
    def data_axes(self) -> tuple[str, ...]:
        """The axes that shard the batch."""
        return self.axes_of("batch")

    @cached_property
    def data_parallel(self) -> int:
        return self.mesh.size(*self.data_axes)

    @cached_property
    def microbatches(self) -> int:
        """Number of microbatches in a step, for each data-parallel rank."""
        return self.batch.sequences // (self.data_parallel * self.batch.microbatch_sequences)

    def store(self, noun: Noun, region: str = "") -> tuple[str, ...]:
        """Return the axes that shard the state `noun` (params, grads or optimizer), outermost first; () if every rank
        stores all of it.

        A sentence for `region` takes precedence over sentences for the whole model ("").
        """
        axes = {a for s in self._stores(noun, region) for a in s.axes}
        return self.mesh.in_order(a for a in axes if self.exists(a, region))

    def store_dtype(self, noun: Noun, region: str = "") -> str:
        """Return the dtype in which the state `noun` (params, grads or optimizer) is stored; fp32 if no sentence says
        it.

        A sentence for `region` takes precedence over sentences for the whole model ("").
        """
        scoped = next((s.dtype for s in self._stores(noun, region) if s.dtype), "")
        return scoped or next((s.dtype for s in self.stores if s.noun == noun and s.dtype and not s.region), "fp32")

    @cached_on(lambda plan, noun, region: (plan.cache, (noun, region)))
    def _stores(self, noun: Noun, region: str) -> list[Store]:
        scoped = [s for s in self.stores if region and s.noun == noun and s.region == region]
        return scoped or [s for s in self.stores if s.noun == noun and not s.region]

    def gather_per_in(self, region: str) -> Period:
        """Return how long gathered parameters of `region` ("": the whole model) stay: `pass`, `microbatch` or `step`.

        It is `step` if they are not sharded, or else by the `gather` sentence. The default is `pass`, but `step` if the
        schedule splits the backward, or if only this region is sharded.
        """
        if not self.store("params", region):
            return "step"
        if self.gather is not None:
            return self.gather.per
        stay = not self.store("params") or self.splits_backward
        return "step" if stay else "pass"

    def gathers_each_pass(self, region: str = "") -> bool:
        """True if sharded parameters of `region` ("": all) are all-gathered in each forward and each backward."""
        return self.gather_per_in(region) == "pass"

    @cached_property
    def gather_per(self) -> Period:
        """How long gathered parameters stay (`pass`, `microbatch`, `step`): the shortest of all regions."""
        regions = ("", *dict.fromkeys(s.region for s in self.stores if s.region))
        return next((per for region in regions if (per := self.gather_per_in(region)) != "step"), "step")

    @property
    def bucket_layers(self) -> int:
        """Number of layers whose parameters one all-gather covers."""
        return self.gather.bucket if self.gather else 1

    def buckets_ahead(self, usual: int) -> int:
        """Return the number of groups of layers that are all-gathered ahead of use; `usual` if no sentence says it."""
        said = self.gather.prefetch if self.gather else 0
        return ceil(said / self.bucket_layers) if said else usual

    @cached_property
    def offloaded(self) -> frozenset[str]:
        """Names of the state (`params`, `optimizer`) and of the activations that are offloaded to host memory."""
        return frozenset(name for o in self.offloads for name in o.what)

    @property
    def state_on_host(self) -> bool:
        """True if parameters or optimizer state are offloaded to host memory."""
        return not self.offloaded.isdisjoint(("params", "optimizer"))

    @cached_property
    def pipeline(self) -> int:
        """Number of pipeline ranks; 1 without a pipeline."""
        return self.mesh.size(self.split.axis) if self.split else 1

    @property
    def pipelined(self) -> Split | None:
        """The plan's `split` if the pipeline has several ranks, else None."""
        return self.split if self.pipeline > 1 else None

    @cached_property
    def splits_backward(self) -> bool:
        """True if the pipeline's schedule splits its backward into dgrad and wgrad."""
        return self.split is not None and self.split.splits_backward

    @property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """(first layer, one past the last) of each virtual stage; one stage without a pipeline."""
        return self.split.stages if self.split else ((0, self.model.layers),)

    @property
    def framework(self) -> str:
        """The framework that `realise as` names; `planc` without this sentence."""
        return self.realise.framework if self.realise else "planc"

    @property
    def for_planc(self) -> Plan:
        """This plan without `realise as` and what the framework decides: as planc's own programs run it.

        A vocabulary that the framework pads stays padded, since the tensor-parallel degree may divide only that.
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

    @property
    def loss_chunks(self) -> int:
        """Number of parts of a microbatch's tokens for which head and loss run one after another."""
        return self.chunked_loss.chunks if self.chunked_loss else 1

    def compiled(self, what: str) -> Compile | None:
        """Return the `compile` sentence for `what` (`blocks` or `loss`); None if there is none."""
        return next((c for c in self.compiles if c.what == what), None)

    def cause_of_shard(self, dim: str, axis: str, region: str = "") -> Cause | None:
        """Return the sentence that shards `dim` over `axis` in `region`; None if there is none."""
        for s in self.shards:
            if s.dim == dim and axis in s.axes and s.region in ("", region):
                return s.cause
        return None

    def cause_of_store(self, noun: Noun, region: str = "") -> Cause | None:
        """Return the sentence that shards the state `noun` in `region` ("": the whole model), or None."""
        return next((s.cause for s in self._stores(noun, region) if s.axes), None)

    # The compiled form.

    def to_json(self) -> dict[str, Any]:
        """Return the compiled plan as JSON (`planc.plan/1`).

        Keys that newer versions added are omitted if the plan does not use them: `realise`, `train`, `price`, the
        currency of an expectation, the bucket and prefetch of a gather, and the kernel of a ring.
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
        """Return the compiled plan as one line of JSON with sorted keys; equal plans give equal bytes."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of what the plan means, without file names, places, and sentences that state a default."""
        meaning = _without_places(replace(self, **self._unsaid).to_json())
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    @property
    def _unsaid(self) -> dict[str, Any]:
        """Fields without sentences that state a default (`store ... as fp32`, `gather`, `realise as planc`)."""
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
