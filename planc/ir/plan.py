"""The plan: what the sentences say, resolved to values. One sentence, one node, one cause."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from planc.ir.base import Cause, Value
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh
from planc.ir.model import Model

Noun = Literal["params", "grads", "optimizer"]
Period = Literal["pass", "microbatch", "step"]
NOUNS: tuple[Noun, ...] = ("params", "grads", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Batch(Value):
    """`batch SEQUENCES x TOKENS tokens microbatch N`: N sequences per data-parallel rank at a time."""

    sequences: int
    sequence_tokens: int
    microbatch_sequences: int
    cause: Cause

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequences * self.sequence_tokens


@dataclass(frozen=True, kw_only=True)
class Shard(Value):
    """`shard DIM over AXES [in REGION]`: every tensor dim of that name is divided."""

    dim: str
    axes: tuple[str, ...]
    region: str = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Store(Value):
    """`store NOUN [as DTYPE] [over AXES [on DIM]]`: how state is kept between uses."""

    noun: Noun
    dtype: str = ""
    axes: tuple[str, ...] = ()
    dim: str = ""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Gather(Value):
    """`gather params per PERIOD`: how long gathered params live."""

    per: Period
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Split(Value):
    """`split layers over AXIS as SCHEDULE(chunks = N) [stages [...]]`: the pipeline.

    `stages` gives, for each virtual stage in order, (first layer, one past the last); the first
    also holds the `first` section, the last one the `last` section.
    """

    axis: str
    schedule: str
    chunks: int
    stages: tuple[tuple[int, int], ...]
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Optimizer(Value):
    """`optimizer NAME(...)`. Hyper-parameters belong to the preset; a plan fixes the kind of state."""

    name: Literal["adamw"] = "adamw"
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class Precision(Value):
    """`compute DTYPE reduce DTYPE`: matmuls and activations, and the reduction of gradients."""

    compute: str = "fp32"
    reduce: str = "fp32"
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class Recompute(Value):
    """`recompute blocks` or `recompute OP, ...`: what the backward runs again instead of keeping."""

    ops: tuple[str, ...] = ()
    """Op names; ("blocks",) for whole blocks; () for none."""
    cause: Cause | None = None

    @property
    def blocks(self) -> bool:
        return self.ops == ("blocks",)


@dataclass(frozen=True, kw_only=True)
class Override(Value):
    """`override GLOB = replicated | DIM over AXES and ...`: parameters the rules do not fit."""

    glob: str
    layout: dict[str, tuple[str, ...]]
    """Empty for `replicated`."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Expect(Value):
    """`expect METRIC CMP VALUE`, in SI units (bytes, seconds, fractions)."""

    metric: str
    cmp: Literal["<=", ">=", "<", ">"]
    value: float
    text: str
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class ExpectNo(Value):
    """`expect no CODE`: the diagnostic must be absent."""

    code: str
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Plan(Value):
    """A whole plan. `set` holds the values given with `--set`; `sources` the sha256 of each file read."""

    name: str
    model: Model
    batch: Batch
    cluster: Cluster
    mesh: Mesh
    shards: tuple[Shard, ...] = ()
    stores: tuple[Store, ...] = ()
    gather: Gather | None = None
    split: Split | None = None
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    recompute: Recompute = Recompute()
    overrides: tuple[Override, ...] = ()
    expects: tuple[Expect, ...] = ()
    expects_no: tuple[ExpectNo, ...] = ()
    file: str
    sources: dict[str, str] = field(default_factory=dict)
    set: dict[str, int] = field(default_factory=dict)

    # What several rooms ask of a plan.

    def axes_of(self, dim: str, region: str = "") -> tuple[str, ...]:
        """The axes that divide `dim` in `region`, outermost first; scoped rules add to unscoped ones."""
        axes = {a for s in self.shards if s.dim == dim and s.region in ("", region) for a in s.axes}
        return self.mesh.in_order(axes)

    @cached_property
    def data_axes(self) -> tuple[str, ...]:
        """The axes that divide the batch: the data-parallel ranks."""
        return self.axes_of("batch")

    @property
    def data_parallel(self) -> int:
        return self.mesh.size(*self.data_axes)

    @property
    def microbatches(self) -> int:
        """Microbatches of one step, per data-parallel rank."""
        return self.batch.sequences // (self.data_parallel * self.batch.microbatch_sequences)

    def store(self, noun: Noun) -> tuple[str, ...]:
        """The axes `noun` is stored over, outermost first; () for a whole copy on every rank."""
        axes = {a for s in self.stores if s.noun == noun for a in s.axes}
        return self.mesh.in_order(axes)

    def store_dtype(self, noun: Noun) -> str:
        """The dtype a noun is kept in: fp32 unless a sentence says otherwise."""
        return next((s.dtype for s in self.stores if s.noun == noun and s.dtype), "fp32")

    @property
    def gather_per(self) -> Period:
        """`pass` unless said otherwise; `step` when params are not stored divided."""
        if self.gather is not None:
            return self.gather.per
        return "pass" if self.store("params") else "step"

    @property
    def pipeline(self) -> int:
        """Ranks along the pipeline; 1 without one."""
        return self.mesh.size(self.split.axis) if self.split else 1

    @property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """Layer ranges of the virtual stages; one stage without a pipeline."""
        return self.split.stages if self.split else ((0, self.model.layers),)

    def cause_of_shard(self, dim: str, axis: str, region: str = "") -> Cause | None:
        """The sentence that lays `axis` on `dim` there."""
        for s in self.shards:
            if s.dim == dim and axis in s.axes and s.region in ("", region):
                return s.cause
        return None

    def cause_of_store(self, noun: Noun) -> Cause | None:
        return next((s.cause for s in self.stores if s.noun == noun and s.axes), None)

    # The compiled form.

    def to_json(self) -> dict[str, Any]:
        """`planc.plan/1`: canonical; equal plans give equal bytes with `canonical`."""
        return {"format": "planc.plan/1", **super().to_json()}

    def canonical(self) -> str:
        """The compiled plan as one line of JSON with sorted keys."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @cached_property
    def sha256(self) -> str:
        """Of the plan's meaning: places and file names do not count."""
        return hashlib.sha256(json.dumps(_meaning(self.to_json()), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan a compiled form stands for. Raises pydantic.ValidationError when it is not one."""
        from planc.ir.frozen import read

        return read(cls, {k: v for k, v in data.items() if k != "format"})


_PLACES = {"cause", "span", "file", "sources", "text", "set"}


def _meaning(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _meaning(v) for k, v in value.items() if k not in _PLACES}
    if isinstance(value, list):
        return [_meaning(v) for v in value]
    return value
