"""A serve plan as values: a generator that serves the weights of a training plan, and when it receives them."""

from __future__ import annotations

from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause, Value
from planc.ir.field_types import Count, Digest, FileName, Name, NotNegative, Positive
from planc.ir.plan import Expect, Plan

WeightDtype = Literal["fp32", "bf16", "fp16", "float8"]
WEIGHT_DTYPES: tuple[WeightDtype, ...] = ("fp32", "bf16", "fp16", "float8")
CacheDtype = Literal["bf16", "fp16", "float8"]
CACHE_DTYPES: tuple[CacheDtype, ...] = ("bf16", "fp16", "float8")
Asleep = Literal["params", "cache", "grads", "optimizer"]
OF_GENERATOR: tuple[Asleep, ...] = ("params", "cache")
"""Parts of a generator that can leave the device while the trainer runs."""
OF_TRAINER: tuple[Asleep, ...] = ("params", "grads", "optimizer")
"""Parts of a trainer that can leave the device while the generator runs."""


@dataclass(frozen=True, kw_only=True)
class Weights(Value):
    """`store params as DTYPE[(block = N)]`: the dtype in which the generator holds its weights.

    Of float8, `block` x `block` elements share a scale; 0: one scale for a tensor.
    """

    dtype: WeightDtype
    block: Count = 0
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class KvCache(Value):
    """`cache TOKENS tokens [as DTYPE]`: the tokens that the cache of one replica holds, and its dtype."""

    tokens: Positive
    dtype: CacheDtype
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Requests(Value):
    """`requests COUNT x PROMPT + OUTPUT tokens`: what one replica works on at once."""

    count: Positive
    prompt_tokens: Positive
    output_tokens: Positive
    cause: Cause

    @property
    def tokens(self) -> int:
        """Tokens of one request at its end."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, kw_only=True)
class Sync(Value):
    """`sync every STEPS steps [changed SHARE]`: how often the generator receives weights, and the share of their
    elements that a step changes in the generator's dtype; 1: all are sent."""

    every_steps: Positive = 1
    changed: NotNegative = 1.0
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class Sleep(Value):
    """`sleep PART, ... while training|serving`: parts of one side that leave the device while the other side runs.

    While `training` they are parts of the generator, while `serving` parts of the trainer, which the host holds.
    """

    parts: tuple[Asleep, ...]
    phase: Literal["training", "serving"]
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class ServePlan(Value):
    """A generator beside its trainer.

    `layout` is the generator's layout as a plan: its mesh, its cluster (the trainer's if `colocated`) and what is
    sharded over which axis. If `colocated`, rank i of the generator runs on the device of the trainer's rank i; else
    the generator's ranks follow the trainer's.
    """

    name: Name
    trainer: Plan
    layout: Plan
    weights: Weights
    cache: KvCache | None = None
    requests: Requests | None = None
    sync: Sync = Sync()
    sleeps: tuple[Sleep, ...] = ()
    expects: tuple[Expect, ...] = ()
    colocated: bool
    file: FileName
    sources: dict[FileName, Digest]

    def asleep(self, phase: Literal["training", "serving"]) -> frozenset[Asleep]:
        """Return the parts that leave the device during `phase`."""
        return frozenset(part for sleep in self.sleeps if sleep.phase == phase for part in sleep.parts)

    @property
    def cache_dtype(self) -> CacheDtype:
        """The dtype of the cache: that of the `cache` sentence, else the compute dtype (bf16 for fp32)."""
        compute = self.layout.precision.compute
        return self.cache.dtype if self.cache else "fp16" if compute == "fp16" else "bf16"

    @property
    def replicas(self) -> int:
        """Number of data-parallel copies: ranks along the axes that shard the batch, each with requests of its own."""
        return self.layout.data_parallel
